package sqlserver_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

// patience bounds a wait that should end by a signal.
const patience = servertest.Patience

// onBoth runs a test on a database with READ_COMMITTED_SNAPSHOT and on one without.
func onBoth(t *testing.T, test func(t *testing.T, address string)) {
	for name, snapshot := range map[string]bool{"locking": false, "snapshot": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newDatabase(t, servertest.SQLServer(t, nil), snapshot))
		})
	}
}

// inEachMode runs a test on a database of each of the switches.
func inEachMode(t *testing.T, test func(t *testing.T, address string)) {
	for _, s := range switches {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			if s.options.Babelfish && servertest.RealSQLServer() {
				t.Skip("only the stand-in is one")
			}
			test(t, newDatabase(t, servertest.SQLServer(t, &s.options), s.snapshot))
		})
	}
}

// newDatabase creates a database with the ledger's tables, and returns its address.
func newDatabase(t *testing.T, server string, snapshot bool) string {
	t.Helper()
	address := servertest.SQLServerDB(t, server, snapshot)
	must(t, migrate.Ledger(t.Context(), connect(t, address), migrate.SQLServer))
	return address
}

// onStandIn starts a stand-in with a database, and opens the ledger.
func onStandIn(t *testing.T, options *tds.Options) (*tds.Server, *sqlserver.Ledger) {
	t.Helper()
	server := servertest.SQLServerStandIn(t, options)
	return server, open(t, connect(t, newDatabase(t, server.URL("master"), true)))
}

func connect(t *testing.T, address string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlserver", address)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

func open(t *testing.T, db *sql.DB) *sqlserver.Ledger {
	t.Helper()
	ledger, err := sqlserver.Open(t.Context(), db)
	must(t, err)
	return ledger
}

// begin begins a transaction that is rolled back at the end of t at the latest. It does not use
// t's context: after its end the driver would not wait for the rollback.
func begin(t *testing.T, db *sql.DB, options *sql.TxOptions) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), options)
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// recorded begins a transaction and records the IDs in it.
func recorded(t *testing.T, ledger driver.Ledger, ids ...uuid.UUID) *sql.Tx {
	t.Helper()
	tx := begin(t, ledger.DB(), nil)
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(ids...)))
	return tx
}

func expectOutcome(t *testing.T, ledger driver.Ledger, id uuid.UUID, want driver.Outcome) {
	t.Helper()
	wait := patience
	if want == driver.StillOpen {
		wait = 50 * time.Millisecond
	}
	outcome, _, err := ledger.Settle(t.Context(), id, wait)
	must(t, err)
	if outcome != want {
		t.Errorf("settle says %q, must say %q", outcome, want)
	}
}

func expectCommitted(t *testing.T, ledger driver.Ledger, id uuid.UUID, want bool) {
	t.Helper()
	found, _, err := ledger.Committed(t.Context(), []uuid.UUID{id})
	must(t, err)
	if len(found) > 0 != want {
		t.Errorf("the lookup finds it: %t, must be %t", !want, want)
	}
}

func execute(t *testing.T, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waiting counts the database's sessions that wait for a lock.
const waiting = "SELECT count(*) FROM sys.dm_exec_requests WHERE database_id = DB_ID() AND wait_type LIKE 'LCK%'"

// awaitWaiting waits until a session waits for a lock.
func awaitWaiting(t *testing.T, db *sql.DB) {
	t.Helper()
	servertest.Eventually(t, "a session waits for a lock", func() bool {
		var n int
		must(t, db.QueryRowContext(t.Context(), waiting).Scan(&n))
		return n > 0
	})
}

func prove(t *testing.T, ledger driver.Ledger) error {
	_, err := proof.Prove(t.Context(), ledger)
	return err
}

// forget fails the test unless the ledger deletes the rows of all these IDs.
func forget(t testing.TB, ledger driver.Ledger, ids ...uuid.UUID) {
	t.Helper()
	left, err := ledger.Forget(t.Context(), ids)
	must(t, err)
	if len(left) > 0 {
		t.Errorf("a forget leaves %v", left)
	}
}
