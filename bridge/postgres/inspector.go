package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
)

// carried is embedded without becoming an exported field.
type carried = inspection.Carried

// An Inspector inspects a ledger. It implements inspect.Diagnoser, inspect.Watcher,
// inspect.CarriedReader and inspect.Advancer.
type Inspector struct {
	carried
	ledger   driver.Ledger // the inspected ledger
	on       *Ledger       // the ledger in the same database
	table    string        // the table of the IDs, as written in a statement
	settleIn func(ctx context.Context, tx *sqlx.Tx, id uuid.UUID, milliseconds int64) (driver.Outcome, driver.Instance, error)
}

var (
	_ inspect.Diagnoser     = (*Inspector)(nil)
	_ inspect.Watcher       = (*Inspector)(nil)
	_ inspect.CarriedReader = (*Inspector)(nil)
	_ inspect.Advancer      = (*Inspector)(nil)
)

// Inspect returns the inspector of a ledger.
func Inspect(ledger *Ledger) *Inspector {
	return &Inspector{carriedOn(ledger, ledger), ledger, ledger, ledger.schema.In("bridge_ledger"), ledger.settleIn}
}

// InspectOwnTable returns the inspector of a ledger on a table of the application's own. Its
// Diagnose leaves out carried messages and orphans: there are none.
func InspectOwnTable(ledger *OwnLedger) *Inspector {
	on := ledger.reads.ledger
	return &Inspector{carriedOn(ledger, on), ledger, on, ledger.reads.table, ledger.reads.settleIn}
}

func carriedOn(ledger driver.Ledger, on *Ledger) carried {
	return inspection.NewCarried(ledger, on.db, carriedStatements, inspection.CarriedVerbs{Classify: on.classify, In: on.schema.In})
}
