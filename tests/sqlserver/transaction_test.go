package sqlserver_test

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

var levels = []sql.IsolationLevel{sql.LevelReadUncommitted, sql.LevelReadCommitted,
	sql.LevelRepeatableRead, sql.LevelSnapshot, sql.LevelSerializable}

// inEveryTransaction runs a test in each kind of transaction that a caller may have.
func inEveryTransaction(t *testing.T, test func(t *testing.T, db *sql.DB, tx *sql.Tx, xactAbort bool)) {
	onBoth(t, func(t *testing.T, address string) {
		db := connect(t, address)
		for _, level := range levels {
			for _, xactAbort := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v, XACT_ABORT %t", level, xactAbort), func(t *testing.T) {
					tx := begin(t, db, &sql.TxOptions{Isolation: level})
					if xactAbort {
						execute(t, tx, "SET XACT_ABORT ON")
					}
					execute(t, tx, "SET NOCOUNT ON; SET ROWCOUNT 1; SET TEXTSIZE 1")
					test(t, db, tx, xactAbort)
				})
			}
		}
	})
}

// settings returns a session's settings: LOCK_TIMEOUT, XACT_ABORT, NOCOUNT and the isolation
// level.
func settings(t *testing.T, tx *sql.Tx) (all string) {
	t.Helper()
	must(t, tx.QueryRowContext(t.Context(), `SELECT CONCAT(@@LOCK_TIMEOUT, ' ', @@OPTIONS & 16384, ' ', @@OPTIONS & 512, ' ',
		transaction_isolation_level) FROM sys.dm_exec_sessions WHERE session_id = @@SPID`).Scan(&all))
	return all
}

func TestADuplicateIsRefusedInEveryTransaction(t *testing.T) {
	inEveryTransaction(t, func(t *testing.T, db *sql.DB, tx *sql.Tx, xactAbort bool) {
		ledger := open(t, db)
		first, second := newID(), newID()
		must(t, recorded(t, ledger, first).Commit())
		must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(second)))
		if err := ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(first)); !errors.Is(err, bridge.ErrDuplicateID) {
			t.Errorf("record: %v, must be %v", err, bridge.ErrDuplicateID)
		}
		if xactAbort { // the server has rolled back, so no further statement may succeed
			if err := ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(newID())); err == nil {
				t.Error("there is something recorded without a transaction")
			}
			if err := tx.Commit(); err == nil {
				t.Error("a row that the server rolled back is committed")
			}
		} else {
			must(t, tx.Rollback())
		}
		expectOutcome(t, ledger, second, driver.RolledBack)
	})
}

func TestRecordAndARefusedClaimWorkInEveryTransaction(t *testing.T) {
	inEveryTransaction(t, func(t *testing.T, db *sql.DB, tx *sql.Tx, _ bool) {
		must(t, migrate.Inbox(t.Context(), db, migrate.SQLServer))
		inbox, err := sqlserver.OpenInbox(t.Context(), db)
		must(t, err)
		ledger := open(t, db)
		key, id, further := newID().String(), newID(), newID()
		claim := func(tx *sql.Tx, want bool) {
			t.Helper()
			claimed, err := inbox.Claim(t.Context(), bridge.SQL(tx), "consumer", []string{key})
			must(t, err)
			if (len(claimed) == 1) != want {
				t.Errorf("the claim is %q, must be new: %t", claimed, want)
			}
		}
		first := begin(t, db, nil)
		claim(first, true)
		must(t, first.Commit())

		before := settings(t, tx)
		must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(id, further)))
		claim(tx, false)
		if after := settings(t, tx); after != before {
			t.Errorf("the settings were %s, are %s", before, after)
		}
		expectOutcome(t, ledger, id, driver.StillOpen)
		must(t, tx.Commit())
		expectOutcome(t, ledger, id, driver.Committed)
	})
}

// A pool's only connection may have run a transaction of any level. A server before 2014 would
// keep that isolation level.
func TestTheLookupsBringTheirIsolation(t *testing.T) {
	server := servertest.SQLServer(t, &tds.Options{KeepIsolation: true})
	for name, snapshot := range map[string]bool{"locking": false, "snapshot": true} {
		address := newDatabase(t, server, snapshot)
		sender := open(t, connect(t, address))
		db := connect(t, address)
		db.SetMaxOpenConns(1)
		ledger := open(t, db)
		for _, level := range levels {
			t.Run(name+", "+level.String(), func(t *testing.T) {
				held, done := newID(), newID()
				tx := recorded(t, sender, held)
				must(t, recorded(t, sender, done).Commit())
				use := func() {
					before := begin(t, db, &sql.TxOptions{Isolation: level})
					must(t, before.Commit())
				}
				use()
				expectCommitted(t, ledger, held, false)
				use()
				expectCommitted(t, ledger, done, true)
				use()
				expectOutcome(t, ledger, held, driver.StillOpen)
				must(t, tx.Rollback())
				use()
				expectOutcome(t, ledger, held, driver.RolledBack)
				use()
				forget(t, ledger, done)
				expectCommitted(t, ledger, done, false)
			})
		}
	}
}

// ALTER TABLE blocks all readers. (A real server may wait for its lock while it compiles the
// statement, before our LOCK_TIMEOUT is in force.)
func TestTheLookupWaitsForNoChangeOfTheTable(t *testing.T) {
	_, ledger := onStandIn(t, nil)
	id := newID()
	must(t, recorded(t, ledger, id).Commit())
	tx := begin(t, ledger.DB(), nil)
	execute(t, tx, "ALTER TABLE bridge_ledger SET (LOCK_ESCALATION = DISABLE)")
	expectCommitted(t, ledger, id, false)
	expectOutcome(t, ledger, id, driver.StillOpen)
	must(t, tx.Rollback())
	expectCommitted(t, ledger, id, true)
}
