package ledger_test

import (
	"database/sql"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

const waitsForLock = "datname = current_database() AND wait_event_type = 'Lock'"

// awaitLock waits until a session of the database waits for a lock.
func awaitLock(t *testing.T, db *sql.DB) {
	t.Helper()
	servertest.Eventually(t, "a session waits for a lock", func() bool {
		var n int
		must(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE "+waitsForLock).Scan(&n))
		return n > 0
	})
}

// migrated creates a database with a ledger, and connects to it.
func migrated(t *testing.T) (address string, db *sql.DB) {
	t.Helper()
	address = servertest.PostgresDB(t)
	return address, migratedAt(t, address)
}

// migratedAt creates a ledger in a database.
func migratedAt(t *testing.T, address string) *sql.DB {
	t.Helper()
	db := connect(t, address)
	must(t, migrate.Ledger(t.Context(), db, migrate.PostgreSQL))
	return db
}

func roleOf(t *testing.T, address string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	must(t, err)
	return parsed.User.Username()
}

func connect(t *testing.T, address string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", address)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

func openLedger(t *testing.T, db *sql.DB) driver.Ledger {
	t.Helper()
	ledger, err := postgres.Open(t.Context(), db)
	must(t, err)
	return ledger
}

func begin(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// recorded begins a transaction and records IDs in it.
func recorded(t *testing.T, ledger driver.Ledger, ids ...uuid.UUID) *sql.Tx {
	t.Helper()
	tx := begin(t, ledger.DB())
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(ids...)))
	return tx
}

// use has a ledger record, settle and forget.
func use(t *testing.T, ledger driver.Ledger) {
	t.Helper()
	id := newID()
	expectOutcome(t, ledger, id, driver.RolledBack)
	must(t, recorded(t, ledger, id).Commit())
	expectOutcome(t, ledger, id, driver.Committed)
	forget(t, ledger, id)
}

func execute(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), statement)
	must(t, err)
}

func expectOutcome(t *testing.T, ledger driver.Ledger, id uuid.UUID, want driver.Outcome) {
	t.Helper()
	outcome, _, err := ledger.Settle(t.Context(), id, 2*time.Minute)
	must(t, err)
	if outcome != want {
		t.Errorf("settle says %q, must say %q", outcome, want)
	}
}

func expectNotPrimary(t *testing.T, doing string, err error) {
	t.Helper()
	if !errors.Is(err, bridge.ErrNotPrimary) {
		t.Errorf("%s: %v, must be %v", doing, err, bridge.ErrNotPrimary)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

func prove(t *testing.T, ledger driver.Ledger) error {
	_, err := proof.Prove(t.Context(), ledger)
	return err
}

// forget fails the test unless the ledger deletes the rows of all these IDs.
func forget(t *testing.T, ledger driver.Ledger, ids ...uuid.UUID) {
	t.Helper()
	left, err := ledger.Forget(t.Context(), ids)
	must(t, err)
	if len(left) > 0 {
		t.Errorf("a forget leaves %v", left)
	}
}
