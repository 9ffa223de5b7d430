package ledgertest

import (
	"slices"
	"testing"

	"github.com/twoqueue/twoqueue/bridge/proof"
)

// A test checks one promise of X.
type test[X any] struct {
	name string
	run  func(*testing.T, X)
}

// run runs the tests that depend on a driver, and, unless h is for a driver only, the tests that
// depend on the server. After each test it calls after.
func run[X any](t *testing.T, h Harness, x X, ofDriver, ofServer []test[X], after func(t *testing.T)) {
	t.Helper()
	tests := ofDriver
	if !h.Driver {
		tests = slices.Concat(ofDriver, ofServer)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.run(t, x)
			after(t)
		})
	}
}

// Run tests every promise of driver.Ledger on the ledger of h, that the ledger denies the verbs
// that its features deny, and every promise of inspect.Watcher on its watcher.
func Run(t *testing.T, h Harness) {
	d := h.newDatabase(t)
	run(t, h, d, []test[*database]{
		{"settle waits for an open transaction and reports its commit", testSettleReportsCommit},
		{"settle returns still open at the end of its wait and leaves the connection usable", testSettleStillOpen},
		{"settle of an unrecorded ID is rolled back and leaves nothing", testSettleUnknown},
		{"settle returns promptly when its context is cancelled and leaks no connection", testSettleCancelled},
		{"a deadline during a settle costs no connection", testSettleDeadline},

		{"the lookup finds the committed IDs and no others", testLookup},
		{"many IDs in one transaction are all kept", testManyIDs},
		{"a duplicate ID is refused", testDuplicate},
		{"forget is idempotent and deletes only the given IDs", testForget},
		{"calls without IDs do nothing", testNoIDs},
		{"an ID without a row is refused, and its row is kept", testOwnRows},

		{"every outcome names the server, and all connections name the same one", testInstance},
		{"recent finds committed rows that were recorded within the age, and no others", testRecent},
		{"the ledger passes the proof", func(t *testing.T, d *database) {
			_, err := proof.Prove(t.Context(), d.ledger)
			check(t, err, "prove")
		}},
	}, []test[*database]{
		{"settle waits for an open transaction and reports its rollback", testSettleReportsRollback},
		{"settle waits for an open transaction and reports its connection's end as a rollback", testSettleReportsKill},
		{"many settles of one ID all return its outcome", testSettleSameID},
		{"many settles of many IDs each return their own outcome", testSettleManyIDs},

		{"the lookup never waits and never reports an uncommitted row", testLookupOpen},
		{"an ID recorded in a rolled-back savepoint is rolled back", testSavepoint},
		{"forget skips a row that another session has locked, and names it", testForgetLocked},
		{"a duplicate of an ID that is still open is refused after its commit", testDuplicateOfOpen},

		{"no statement by key reads the whole table or waits for another transaction's row", testLedgerByKey},
	}, d.expectIdle)

	if h.Watch != nil {
		t.Run("watch", func(t *testing.T) { runWatch(t, d) })
	}
	t.Run("carried", func(t *testing.T) { runCarried(t, d) })
	t.Run("sweep", func(t *testing.T) { runSweep(t, d) })
	if !h.Further && !h.Driver {
		runAlone(t, h)
	}
}

// runAlone runs the tests that need a database of their own.
func runAlone(t *testing.T, h Harness) {
	t.Run("many migrators at once make one identity, and none works before them", func(t *testing.T) { testMigrators(t, h, nil) })
	if h.Begun != nil {
		t.Run("migrators that go on where one has died before the first version make one identity too", func(t *testing.T) { testMigrators(t, h, h.Begun) })
	}
	t.Run("tables of the next version serve this release, tables of later ones do not", func(t *testing.T) { testLaterSchema(t, h) })
	t.Run("a schema of an earlier version is refused with the fix", func(t *testing.T) { testEarlierSchema(t, h) })
	t.Run("a transaction of another database is refused", func(t *testing.T) { testOtherDatabase(t, h) })
	for name, statement := range map[string]string{"another": h.Copy, "no": h.named("DELETE FROM bridge_identity")} {
		t.Run("a database with "+name+" identity answers nothing, hands nothing out and is not swept", func(t *testing.T) { testOtherIdentity(t, h, statement) })
	}
	if h.Insert == nil {
		t.Run("the watermark is set before the first row is removed", func(t *testing.T) { testWatermarkFirst(t, h) })
	}
}
