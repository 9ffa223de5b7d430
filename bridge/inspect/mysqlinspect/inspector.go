// Package mysqlinspect implements package inspect for MySQL and MariaDB. Package mysql lists the
// rights that it needs.
//
//	inspector := mysqlinspect.New(ledger)
//	findings, err := inspector.Diagnose(ctx)
//	v, err := verifier.New(ledger, broker, &verifier.Options{Watcher: inspector})
//
//	findings, err = mysqlinspect.DiagnoseInbox(ctx, db) // of a receiver
package mysqlinspect

import (
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/mysql"
)

// An Inspector inspects a ledger. It implements inspect.Diagnoser, inspect.Watcher,
// inspect.CarriedReader and inspect.Advancer.
type Inspector struct {
	ledger driver.Ledger // the inspected ledger
	on     portable.Watched
}

var (
	_ inspect.Diagnoser     = (*Inspector)(nil)
	_ inspect.Watcher       = (*Inspector)(nil)
	_ inspect.CarriedReader = (*Inspector)(nil)
	_ inspect.Advancer      = (*Inspector)(nil)
)

// New returns the inspector of a ledger.
func New(ledger *mysql.Ledger) *Inspector {
	return &Inspector{ledger, portable.WatchedOf(&ledger.Ledger)}
}

// NewOwnTable returns the inspector of a ledger on a table of the application's own. Its Diagnose
// leaves out carried messages and orphans: there are none.
func NewOwnTable(ledger *mysql.OwnLedger) *Inspector {
	return &Inspector{ledger, portable.WatchedOf(ledger.Ledger)}
}
