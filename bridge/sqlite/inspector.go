package sqlite

import (
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
)

// carried is embedded without becoming an exported field.
type carried = inspection.Carried

// An Inspector inspects a ledger. It implements inspect.Diagnoser, inspect.CarriedReader and
// inspect.Advancer.
type Inspector struct {
	carried
	ledger driver.Ledger // the inspected ledger
	db     *sqlx.DB
}

var (
	_ inspect.Diagnoser     = (*Inspector)(nil)
	_ inspect.CarriedReader = (*Inspector)(nil)
	_ inspect.Advancer      = (*Inspector)(nil)
)

// Inspect returns the inspector of a ledger.
func Inspect(ledger *Ledger) *Inspector { return inspectorOn(ledger, ledger.db) }

// InspectOwnTable returns the inspector of a ledger on a table of the application's own. Its
// Diagnose leaves out carried messages and orphans: there are none.
func InspectOwnTable(ledger *OwnLedger) *Inspector {
	return inspectorOn(ledger, sqlx.NewDb(ledger.DB(), "sqlite"))
}

func inspectorOn(ledger driver.Ledger, db *sqlx.DB) *Inspector {
	return &Inspector{inspection.NewCarried(ledger, db, carriedStatements, inspection.CarriedVerbs{Classify: classify}), ledger, db}
}
