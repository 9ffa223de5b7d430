package ledger_test

import (
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

// ledgerOnOneConnection is an empty ledger; the connection keeps the plans.
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

// To plan the INSERT of a sender's transaction costs as much as to carry it out.
func TestPostgresRecordsByPlansThatAreKept(t *testing.T) {
	t.Parallel()
	db, ledger := ledgerOnOneConnection(t, servertest.PostgresDB(t))
	const kept = 10
	for _, messages := range []int{1, 2} {
		for range 5 + kept { // a plan may be kept after the fifth
			tx, err := db.BeginTx(t.Context(), nil)
			must(t, err)
			ids := make([]uuid.UUID, messages)
			for i := range ids {
				ids[i] = uuid.Must(uuid.NewV7())
			}
			must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(ids...)))
			must(t, tx.Commit())
		}
	}
	var plans []struct{ Generic, Custom int }
	must(t, db.Select(&plans, `SELECT generic_plans AS generic, custom_plans AS custom
FROM pg_prepared_statements WHERE statement LIKE 'INSERT INTO bridge_ledger (id)%'`))
	if len(plans) != 2 {
		t.Fatalf("%d statements record, not one for one ID and one for several", len(plans))
	}
	for _, p := range plans {
		if p.Generic != kept || p.Custom != 5 {
			t.Errorf("planned %d times, kept plan used %d times", p.Custom, p.Generic)
		}
	}
}

// A transaction that is open for long keeps the server from removing the rows of all that have
// been forwarded since. The statistics do not count these, so that the whole table seems to cost
// less than the index.
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
		"forget one":      func() error { _, err := ledger.Forget(t.Context(), ids[:1]); return err },
		"forget hundred":  func() error { _, err := ledger.Forget(t.Context(), ids); return err },
	} {
		if read := scanned(statement); read > others {
			t.Errorf("%s has read %d rows", name, read)
		}
	}
}
