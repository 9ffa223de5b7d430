package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// What is measured: go test -run=NONE -bench=. -benchtime=1x ./tests/idempotency
const (
	fewClaims  = 1_000
	manyClaims = 5_000_000
	rounds     = 20  // of each of two cases, in turn
	perRound   = 300 // claims
)

// A benched inbox has claims of consumer 'shop' whose keys are UUIDv7 of 100 days ago, a
// millisecond apart.
type benched struct {
	*sql.DB
	driver.Inbox
}

var benchDatabases = map[string]func(b *testing.B, claims int) benched{
	"PostgreSQL": func(b *testing.B, claims int) benched {
		return fill(b, "pgx", servertest.PostgresDB(b), migrate.PostgreSQL, claims,
			func(ctx context.Context, db *sql.DB) (driver.Inbox, error) { return postgres.OpenInbox(ctx, db) },
			`INSERT INTO bridge_inbox (consumer, key, claimed_at)
SELECT 'shop', substr(h, 1, 8) || '-' || substr(h, 9) || '-7000-8000-' || lpad(to_hex(n), 12, '0'), now() - interval '100 days'
FROM (SELECT n, lpad(to_hex($1::bigint + n), 12, '0') AS h FROM generate_series(1, $2::bigint) AS n) AS keys`,
			`VACUUM ANALYZE bridge_inbox`, `CHECKPOINT`)
	},
	"MariaDB": func(b *testing.B, claims int) benched {
		return fill(b, "mysql", servertest.MariaDBDatabase(b), migrate.MySQL, claims,
			func(ctx context.Context, db *sql.DB) (driver.Inbox, error) { return mysql.OpenInbox(ctx, db) },
			"INSERT INTO bridge_inbox (consumer, `key`, claimed_at) "+`
SELECT 'shop', CONCAT(SUBSTR(h, 1, 8), '-', SUBSTR(h, 9), '-7000-8000-', LPAD(LOWER(HEX(n)), 12, '0')), UTC_TIMESTAMP(6) - INTERVAL 100 DAY
FROM (SELECT seq AS n, LPAD(LOWER(HEX(? + seq)), 12, '0') AS h FROM seq_1_to_5000000 WHERE seq <= ?) AS my_keys`,
			`ANALYZE TABLE bridge_inbox`)
	},
}

func fill(b *testing.B, driver, dsn string, dialect migrate.Dialect, claims int,
	open func(context.Context, *sql.DB) (driver.Inbox, error), insert string, after ...string) benched {
	b.Helper()
	db, err := sql.Open(driver, dsn)
	check(b, err)
	b.Cleanup(func() { db.Close() })
	check(b, migrate.Inbox(b.Context(), db, dialect))
	_, err = db.ExecContext(b.Context(), insert, time.Now().Add(-100*24*time.Hour).UnixMilli(), claims)
	check(b, err)
	for _, statement := range after {
		_, err := db.ExecContext(b.Context(), statement)
		check(b, err)
	}
	inbox, err := open(b.Context(), db)
	check(b, err)
	return benched{db, inbox}
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// round claims new keys one after the other, each in a transaction, and returns how
// long each took.
func (d benched) round(b *testing.B) []time.Duration {
	b.Helper()
	took := make([]time.Duration, perRound)
	for i := range took {
		key := uuid.Must(uuid.NewV7()).String()
		start := time.Now()
		tx, err := d.BeginTx(b.Context(), nil)
		check(b, err)
		claimed, err := d.Claim(b.Context(), bridge.SQL(tx), "shop", key)
		check(b, err)
		check(b, tx.Commit())
		took[i] = time.Since(start)
		if !claimed {
			b.Fatal("a new key is claimed already")
		}
	}
	return took
}

// A sample is of two cases that were measured in turn, so that both have met whatever
// else the machine does.
type sample struct{ usual, other []time.Duration }

func (s *sample) report(b *testing.B, usual, other string) {
	quantile := func(d []time.Duration, q float64) float64 {
		slices.Sort(d)
		return float64(d[int(q*float64(len(d)-1))].Microseconds())
	}
	for name, q := range map[string]float64{"p50": 0.5, "p99": 0.99} {
		u, o := quantile(s.usual, q), quantile(s.other, q)
		b.ReportMetric(u, "µs-"+name+"-"+usual)
		b.ReportMetric(o, "µs-"+name+"-"+other)
		b.ReportMetric(o/u, name+"-ratio")
	}
	b.ReportMetric(0, "ns/op")
}

// With five million claims in the inbox a claim takes as long as with a thousand.
func BenchmarkClaimAmongFewAndMany(b *testing.B) {
	for name, make := range benchDatabases {
		b.Run(name, func(b *testing.B) {
			few, many := make(b, fewClaims), make(b, manyClaims)
			var s sample
			few.round(b)
			many.round(b)
			b.ResetTimer()
			for range rounds * b.N {
				s.usual = append(s.usual, few.round(b)...)
				s.other = append(s.other, many.round(b)...)
			}
			s.report(b, "1k", "5M")
		})
	}
}

// A purge of millions, as fast as it goes, beside claims.
func BenchmarkClaimWhileMillionsArePurged(b *testing.B) {
	for name, make := range benchDatabases {
		b.Run(name, func(b *testing.B) {
			d := make(b, manyClaims)
			guard, err := idempotency.New(d.Inbox, "shop", &idempotency.Options{HandBack: true})
			check(b, err)
			var s sample
			d.round(b)
			b.ResetTimer()
			start := time.Now()
			var purging time.Duration
			for range rounds * b.N {
				s.usual = append(s.usual, d.round(b)...)
				ctx, stop := context.WithCancel(b.Context())
				var purge sync.WaitGroup
				purge.Go(func() {
					start := time.Now()
					if _, err := guard.Purge(ctx, d.DB); !errors.Is(err, context.Canceled) {
						b.Errorf("the purge has ended: %v", err)
					}
					purging += time.Since(start)
				})
				s.other = append(s.other, d.round(b)...)
				stop()
				purge.Wait()
			}
			b.Logf("%d purged in %v of %v", guard.Stats().Purged, purging.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
			b.ReportMetric(float64(guard.Stats().Purged)/purging.Seconds(), "purged/s")
			s.report(b, "alone", "purging")
		})
	}
}
