// Package ledgertest is the specification of a ledger and of an inbox, as a suite
// of tests that every database must pass.
//
//	func TestLedger(t *testing.T) {
//		ledgertest.Run(t, harness)
//		ledgertest.RunInbox(t, harness)
//	}
//
// A Harness says how to reach the database, and in what it differs from others;
// the suite never asks which database it is.
package ledgertest
