// Package ledgertest is the specification of a ledger and of an inbox, as a suite
// of tests that every database must pass.
//
//	func TestLedger(t *testing.T) {
//		ledgertest.Run(t, harness)
//		ledgertest.RunInbox(t, harness)
//	}
//
// A Harness says how to reach the database, and in what it differs from others;
// the suite never asks which database it is. What the tests hold are the promises of
// driver.Ledger, driver.Inbox and inspect.Watcher; the names of the tests say them one by
// one. A Harness with an Insert is for a ledger on a
// table of the application's own (bridge.OwnTable).
//
// The database must be a real one, or a model that says what it models (tests/tds). The
// suite waits for signals where the database gives any (Harness.Waiting), and gives every
// wait minutes, so that a slow machine fails nothing.
package ledgertest
