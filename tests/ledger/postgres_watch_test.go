package ledger_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func holders(t *testing.T, ledger driver.Ledger, id uuid.UUID) []inspect.Holder {
	t.Helper()
	found, err := inspectorOf(t, ledger).Holders(t.Context(), id)
	must(t, err)
	return found
}

func opens(t *testing.T, ledger driver.Ledger) []inspect.Holder {
	t.Helper()
	found, err := inspectorOf(t, ledger).OpenTransactions(t.Context(), 0, 10)
	must(t, err)
	return found
}

func backend(t *testing.T, q interface {
	QueryRow(query string, args ...any) *sql.Row
}) string {
	t.Helper()
	var pid string
	must(t, q.QueryRow("SELECT pg_backend_pid()::text").Scan(&pid))
	return pid
}

// A login without pg_read_all_stats sees that other logins' sessions exist, and nothing more.
func TestPostgresHoldersWithLeastRights(t *testing.T) {
	t.Parallel()
	address, admin := migrated(t)
	role, at := servertest.PostgresRole(t, address, "SELECT, INSERT, DELETE ON bridge_ledger", "SELECT ON bridge_identity", "SELECT ON bridge_ledger_version")
	db := connect(t, at)
	ledger := openLedger(t, db)
	others, its := newID(), newID()
	tx := recorded(t, openLedger(t, admin), others)
	own := recorded(t, ledger, its)

	found := holders(t, ledger, others)
	if len(found) != 1 || found[0].Session != backend(t, tx) || !found[0].Since.IsZero() || found[0].Statement != "" || found[0].Host != "" {
		t.Errorf("the holders of another's: %+v", found)
	}
	found = holders(t, ledger, its)
	if len(found) != 1 || found[0].Login != role || found[0].Since.IsZero() || !strings.HasPrefix(found[0].Statement, "INSERT") {
		t.Errorf("the holders of its own: %+v", found)
	}
	if found := opens(t, ledger); len(found) != 1 || found[0].Login != role {
		t.Errorf("the open transactions: %+v", found)
	}
	must(t, own.Rollback())
	if found := opens(t, ledger); found != nil {
		t.Errorf("none that it may see: %#v", found)
	}
	execute(t, admin, "GRANT pg_read_all_stats TO "+role)
	must(t, tx.Rollback())
	if found := opens(t, openLedger(t, connect(t, at))); found == nil || len(found) > 0 {
		t.Errorf("none at all: %#v", found)
	}
}

// A holder may itself wait for another session.
func TestPostgresHolderThatWaitsSaysForWhom(t *testing.T) {
	t.Parallel()
	_, db := migrated(t)
	ledger := openLedger(t, db)
	first, second := newID(), newID()
	root, middle := begin(t, db), begin(t, db)
	must(t, ledger.Record(t.Context(), bridge.SQL(root), driver.Plain(first)))
	must(t, ledger.Record(t.Context(), bridge.SQL(middle), driver.Plain(second)))
	recorded := make(chan error, 1)
	waiter := backend(t, middle)
	go func() { recorded <- ledger.Record(t.Context(), bridge.SQL(middle), driver.Plain(first)) }()
	awaitLock(t, db)
	found := holders(t, ledger, second)
	if len(found) != 1 || found[0].Session != waiter || found[0].State != "active, waits for session "+backend(t, root) {
		t.Errorf("the holders are %+v", found)
	}
	must(t, root.Rollback())
	must(t, servertest.Next(t, "the record's end", recorded))
}

// The server does not bound the wait for a table's lock; Holders bounds its own.
func TestPostgresHoldersOfALockedTable(t *testing.T) {
	t.Parallel()
	_, db := migrated(t)
	ledger := openLedger(t, db)
	tx := begin(t, db)
	_, err := tx.ExecContext(t.Context(), "LOCK TABLE bridge_ledger IN ACCESS EXCLUSIVE MODE")
	must(t, err)
	found := holders(t, ledger, newID())
	if len(found) != 1 || found[0].Session != backend(t, tx) || !strings.HasPrefix(found[0].Statement, "LOCK TABLE") {
		t.Errorf("the holders are %+v", found)
	}
}

// A settle locks the row for a moment. Its verifier is no holder of the message.
func TestPostgresHoldersLeaveOutSettles(t *testing.T) {
	t.Parallel()
	_, db := migrated(t)
	id := newID()
	tx := begin(t, db)
	// As a settle begins.
	_, err := tx.ExecContext(t.Context(), "WITH own AS MATERIALIZED (\n\tSELECT set_config('lock_timeout', '1s', true)) "+
		"INSERT INTO bridge_ledger (id) SELECT '"+id.String()+"'::uuid FROM own")
	must(t, err)
	if found := holders(t, openLedger(t, db), id); len(found) > 0 {
		t.Errorf("the holders are %+v", found)
	}
	_, err = tx.ExecContext(t.Context(), "SELECT 1")
	must(t, err)
	if found := holders(t, openLedger(t, db), id); len(found) != 1 {
		t.Errorf("the holders are %+v", found)
	}
}
