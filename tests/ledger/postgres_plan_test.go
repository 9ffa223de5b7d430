package ledger_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// ledgerOnOneConnection is an empty ledger; the connection keeps the plans.
func ledgerOnOneConnection(t *testing.T) (*sqlx.DB, *postgres.Ledger) {
	t.Helper()
	db, err := sqlx.Open("pgx", servertest.PostgresDB(t))
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
	db, ledger := ledgerOnOneConnection(t)
	const kept = 10
	for _, messages := range []int{1, 2} {
		for range 5 + kept { // a plan may be kept after the fifth
			tx, err := db.BeginTx(t.Context(), nil)
			must(t, err)
			ids := make([]uuid.UUID, messages)
			for i := range ids {
				ids[i] = uuid.Must(uuid.NewV7())
			}
			must(t, ledger.Record(t.Context(), bridge.SQL(tx), ids))
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
