// Package sqliteinspect implements package inspect for SQLite. It cannot find the holders of a row:
// SQLite does not show which connection has the file's lock.
//
//	findings, err := sqliteinspect.New(ledger).Diagnose(ctx)
//
//	findings, err = sqliteinspect.DiagnoseInbox(ctx, db) // of a receiver
package sqliteinspect

import (
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
)

// An Inspector inspects a ledger. It implements inspect.Diagnoser, inspect.CarriedReader and
// inspect.Advancer.
type Inspector struct {
	ledger driver.Ledger // the inspected ledger
	on     portable.Watched
}

var (
	_ inspect.Diagnoser     = (*Inspector)(nil)
	_ inspect.CarriedReader = (*Inspector)(nil)
	_ inspect.Advancer      = (*Inspector)(nil)
)

// New returns the inspector of a ledger.
func New(ledger *sqlite.Ledger) *Inspector {
	return &Inspector{ledger, portable.WatchedOf(&ledger.Ledger)}
}

// NewOwnTable returns the inspector of a ledger on a table of the application's own. Its
// Diagnose leaves out carried messages and orphans: there are none.
func NewOwnTable(ledger *sqlite.OwnLedger) *Inspector {
	return &Inspector{ledger, portable.WatchedOf(ledger.Ledger)}
}
