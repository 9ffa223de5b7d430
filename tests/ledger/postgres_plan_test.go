package ledger_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// ledgerOnOneConnection returns an empty ledger. Its only connection keeps the plans.
func ledgerOnOneConnection(t *testing.T, address string) (*sqlx.DB, *postgres.Ledger) {
	t.Helper()
	db, err := sqlx.Open("pgx", address)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	db.SetMaxOpenConns(1)
	must(t, migrate.Ledger(t.Context(), db.DB, migrate.PostgreSQL))
	ledger, err := postgres.Open(t.Context(), db.DB)
	must(t, err)
	return db, ledger
}

// Planning the INSERT of a sender's transaction costs as much as executing it.
func TestPostgresRecordsByPlansThatAreKept(t *testing.T) {
	t.Parallel()
	db, ledger := ledgerOnOneConnection(t, servertest.PostgresDB(t))
	const kept = 10
	for _, kind := range []driver.Entry{{}, {Message: []byte("published")}, {Message: []byte("unpublished"), Unpublished: true}} {
		for _, messages := range []int{1, 2} {
			for range 5 + kept { // a plan may be kept after the fifth
				tx, err := db.BeginTx(t.Context(), nil)
				must(t, err)
				entries := slices.Repeat([]driver.Entry{kind}, messages)
				for i := range entries {
					entries[i].ID = newID()
				}
				must(t, ledger.Record(t.Context(), bridge.SQL(tx), entries))
				must(t, tx.Commit())
			}
		}
	}
	var plans []struct{ Generic, Custom int }
	must(t, db.Select(&plans, `SELECT generic_plans AS generic, custom_plans AS custom
FROM pg_prepared_statements WHERE statement LIKE 'INSERT INTO bridge_ledger (id%'`))
	if len(plans) != 6 {
		t.Fatalf("%d statements record, not one for one ID and one for several, of three kinds", len(plans))
	}
	for _, p := range plans {
		if p.Generic != kept || p.Custom != 5 {
			t.Errorf("planned %d times, kept plan used %d times", p.Custom, p.Generic)
		}
	}
}

// A transaction that is open for long keeps the server from removing the rows of all messages
// forwarded since. The statistics do not count these rows, so reading the whole table seems
// cheaper than the index.
func TestPostgresGoesByKeyAmongDeadRows(t *testing.T) {
	t.Parallel()
	address := servertest.PostgresDB(t)
	db, ledger := ledgerOnOneConnection(t, address)
	other, err := sqlx.Open("pgx", address)
	must(t, err)
	defer other.Close()
	long, err := other.BeginTxx(t.Context(), nil)
	must(t, err)
	defer func() { must(t, long.Rollback()) }()
	_, err = long.Exec(`INSERT INTO bridge_ledger (id) VALUES (gen_random_uuid())`)
	must(t, err)
	for _, statement := range []string{
		`INSERT INTO bridge_ledger (id) SELECT gen_random_uuid() FROM generate_series(1, 7000)`,
		`DELETE FROM bridge_ledger`,
		`INSERT INTO bridge_ledger (id) SELECT gen_random_uuid() FROM generate_series(1, 100)`,
		`VACUUM (ANALYZE) bridge_ledger`,
	} {
		_, err := db.Exec(statement)
		must(t, err)
	}
	ids := make([]uuid.UUID, 100)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	scanned := func(statement func() error) int {
		t.Helper()
		before, err := scannedByPostgres(t.Context(), db.DB)
		must(t, err)
		must(t, statement())
		after, err := scannedByPostgres(t.Context(), db.DB)
		must(t, err)
		return after - before
	}
	const others = 20 // rows of bridge_identity and the like
	plain := func() error {
		_, err := db.Exec(`DELETE FROM bridge_ledger WHERE id = ANY (ARRAY(SELECT gen_random_uuid()))`)
		return err
	}
	if scanned(plain) <= others {
		t.Fatal("a plain statement goes by key too: nothing is shown")
	}
	for name, statement := range map[string]func() error{
		"look up one":     func() error { _, _, err := ledger.Committed(t.Context(), ids[:1]); return err },
		"look up hundred": func() error { _, _, err := ledger.Committed(t.Context(), ids); return err },
		"settle":          func() error { _, _, err := ledger.Settle(t.Context(), ids[0], time.Second); return err },
		"list due rows":   func() error { _, _, err := ledger.Due(t.Context(), driver.DueRow{}, 100); return err },
		"claim hundred": func() error {
			rows := make([]driver.DueRow, len(ids))
			for i, id := range ids {
				rows[i].ID = id
			}
			_, err := ledger.Claim(t.Context(), rows)
			return err
		},
		"touch one":      func() error { return ledger.Touch(t.Context(), ids[:1]) },
		"touch hundred":  func() error { return ledger.Touch(t.Context(), ids) },
		"forget one":     func() error { _, err := ledger.Forget(t.Context(), ids[:1]); return err },
		"forget hundred": func() error { _, err := ledger.Forget(t.Context(), ids); return err },
	} {
		if read := scanned(statement); read > others {
			t.Errorf("%s has read %d rows", name, read)
		}
	}
}

// As after an outage of the broker, a thousand rows of one statement have the same stage time.
// There are as many delayed messages as due ones.
func TestPostgresLooksAtManyDueRowsAndClaimsThemByKey(t *testing.T) {
	t.Parallel()
	db, ledger := ledgerOnOneConnection(t, servertest.PostgresDB(t))
	const there, same, limit = 20_000, 1000, 100
	fill := fmt.Sprintf(`INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT gen_random_uuid(), now(), 'x', now() - (n %% %d) * interval '1 ms' FROM generate_series(1, %d) AS n`, there/same, there)
	delayed := fmt.Sprintf(`INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT gen_random_uuid(), t, 'x', t FROM generate_series(1, %d) AS n, LATERAL (SELECT now() + n * interval '1 h') AS due (t)`, there)
	inspector := postgres.Inspect(ledger)
	for _, analyzed := range []bool{false, true} {
		for _, statement := range []string{`TRUNCATE bridge_ledger`, `VACUUM (ANALYZE) bridge_ledger`, fill, delayed} {
			_, err := db.Exec(statement)
			must(t, err)
		}
		if analyzed {
			_, err := db.Exec(`VACUUM (ANALYZE) bridge_ledger`)
			must(t, err)
		}
		// Rows fetched from the table, by index or not, since the server's start.
		fetched := func() (n int) {
			t.Helper()
			_, err := db.Exec(`SELECT pg_stat_force_next_flush()`)
			must(t, err)
			must(t, db.Get(&n, `SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'bridge_ledger'`))
			return n
		}
		var due []driver.DueRow
		for _, step := range []struct {
			what string
			do   func() error
			most int
		}{
			{"count of delayed messages", func() error {
				n, err := inspector.CountDelayed(t.Context(), limit)
				if n != limit {
					t.Errorf("%d delayed messages are counted, must be %d", n, limit)
				}
				return err
			}, limit},
			{"list of delayed messages", func() error { _, err := inspector.DelayedRows(t.Context(), limit); return err }, 2 * limit},
			{"look", func() (err error) { due, _, err = ledger.Due(t.Context(), driver.DueRow{}, limit); return err }, 2 * same},
			{"look from a time on", func() error {
				_, _, err := ledger.Due(t.Context(), driver.DueRow{StageAt: due[0].StageAt.Add(time.Millisecond)}, limit)
				return err
			}, 2 * same},
			{"look after a row", func() error { _, _, err := ledger.Due(t.Context(), due[limit-1], limit); return err }, 2 * same},
			{"claim", func() error {
				messages, err := ledger.Claim(t.Context(), due)
				if len(due) != limit || len(messages) != limit {
					t.Errorf("%d rows are due, %d are claimed, must be %d", len(due), len(messages), limit)
				}
				return err
			}, 3 * limit},
			{"touch", func() error {
				ids := make([]uuid.UUID, len(due))
				for i, row := range due {
					ids[i] = row.ID
				}
				return ledger.Touch(t.Context(), ids)
			}, 3 * limit},
		} {
			before := fetched()
			must(t, step.do())
			if n := fetched() - before; n > step.most {
				t.Errorf("analyzed %t: a %s of %d of %d rows has fetched %d", analyzed, step.what, limit, there, n)
			}
		}
	}
}
