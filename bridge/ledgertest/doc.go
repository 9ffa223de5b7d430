// Package ledgertest is the specification of a ledger and of an inbox, as a suite of tests that
// every database must pass.
//
//	func TestLedger(t *testing.T) {
//		ledgertest.Run(t, harness)
//		ledgertest.RunInbox(t, harness)
//	}
//
// A Harness connects the suite to a database, and holds its differences from others. The suite
// never asks which database it is. The tests check the promises of driver.Ledger, driver.Inbox and
// inspect.Watcher; their names are these promises. A Harness with an Insert is for a ledger on a
// table of the application's own (bridge.OwnTable).
//
// Well and Finds serve tests of an inspect.Diagnoser, ReadsCarried tests of an
// inspect.CarriedReader and an inspect.Advancer, and Verbs tests that need every verb of an inbox.
//
// The database must be a real one, or a model that documents its limits (tests/tds). The suite
// waits for signals if the database gives any (Harness.Waiting). Every wait may take minutes, so
// that a slow machine fails no test.
package ledgertest
