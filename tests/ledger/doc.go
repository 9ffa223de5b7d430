// Package ledger runs the suites of bridge/ledgertest on real servers, and tests the behaviour
// that only some of these servers have.
package ledger
