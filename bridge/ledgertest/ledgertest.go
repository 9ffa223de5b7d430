package ledgertest

import "testing"

// Run shows that the ledger of h keeps every promise of driver.Ledger, that it denies what
// its features deny, and that who watches it keeps every promise of inspect.Watcher.
func Run(t *testing.T, h Harness) {
	tests := []struct {
		name string
		test func(*testing.T, *database)
	}{
		{"settle waits for an open transaction and tells its commit", testSettleTellsCommit},
		{"settle waits for an open transaction and tells its rollback", testSettleTellsRollback},
		{"settle waits for an open transaction and tells its connection's end as a rollback", testSettleTellsKill},
		{"settle comes back still open at the end of its wait and leaves the connection usable", testSettleStillOpen},
		{"settle of an ID that nobody recorded is rolled back and leaves nothing", testSettleUnknown},
		{"settle returns promptly when its context is cancelled and leaks no connection", testSettleCancelled},
		{"a deadline during a settle costs no connection", testSettleDeadline},
		{"many settles of one ID all learn its outcome", testSettleSameID},
		{"many settles of many IDs each learn their own outcome", testSettleManyIDs},

		{"the lookup finds what is committed and nothing else", testLookup},
		{"the lookup never waits and never reports an uncommitted row", testLookupOpen},
		{"of many IDs in one transaction none is lost", testManyIDs},
		{"an ID recorded in a rolled-back savepoint is rolled back", testSavepoint},
		{"a duplicate ID is refused", testDuplicate},
		{"a duplicate of an ID that is still open is refused after its commit", testDuplicateOfOpen},
		{"forget is idempotent and takes only what it is given", testForget},
		{"no IDs are no work", testNoIDs},

		{"an ID without a row is refused, and its row is kept", testOwnRows},

		{"no statement by key reads the table through or waits for a row of others", testLedgerByKey},

		{"the ledger passes the proof", testProof},
	}
	d := h.newDatabase(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.test(t, d)
			d.expectIdle(t)
		})
	}

	if h.Watch != nil {
		t.Run("watch", func(t *testing.T) { runWatch(t, d) })
	}
	t.Run("parked", func(t *testing.T) { runParked(t, d) })
	t.Run("sweep", func(t *testing.T) { runSweep(t, d) })
	if !h.Further {
		t.Run("a broken ledger fails the proof", func(t *testing.T) { testProofOfBroken(t, d) })
		runAlone(t, h)
	}
}

// runAlone runs what has a database of its own.
func runAlone(t *testing.T, h Harness) {
	t.Run("the identity is stable and belongs to one database", func(t *testing.T) { testIdentity(t, h) })
	t.Run("many migrators at once make one identity", func(t *testing.T) { testMigrators(t, h) })
	t.Run("a database without tables is refused with the mend", func(t *testing.T) { testNoSchema(t, h) })
	t.Run("a schema of the next version serves this release", func(t *testing.T) { testNextSchema(t, h) })
	t.Run("a schema of a later version is refused", func(t *testing.T) { testLaterSchema(t, h) })
	t.Run("a transaction of another database is refused", func(t *testing.T) { testOtherDatabase(t, h) })
	t.Run("a database that has lost its identity answers nothing", func(t *testing.T) { testLostIdentity(t, h) })
	t.Run("a schema of an earlier version is refused with the mend", func(t *testing.T) { testEarlierSchema(t, h) })
	if h.Insert != nil {
		return
	}
	t.Run("a parked message of a transaction of another database is refused", func(t *testing.T) { testParkOtherDatabase(t, h) })
	t.Run("a database that has lost its identity gives nothing out", func(t *testing.T) { testParkLostIdentity(t, h) })
	t.Run("a database that has lost its identity is not swept", func(t *testing.T) { testSweepLostIdentity(t, h) })
	t.Run("the watermark is there before the first row is gone", func(t *testing.T) { testWatermarkFirst(t, h) })
}
