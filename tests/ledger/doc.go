// Package ledger runs the suites of bridge/ledgertest on real servers, and what
// only one of them can do.
package ledger
