package sqlserver

import (
	"context"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// carried is embedded without becoming an exported field.
type carried = inspection.Carried

// An Inspector inspects a ledger. It implements inspect.Diagnoser, inspect.Watcher,
// inspect.CarriedReader and inspect.Advancer.
type Inspector struct {
	carried
	ledger driver.Ledger // the inspected ledger
	on     *Ledger       // reads its table
}

var (
	_ inspect.Diagnoser     = (*Inspector)(nil)
	_ inspect.Watcher       = (*Inspector)(nil)
	_ inspect.CarriedReader = (*Inspector)(nil)
	_ inspect.Advancer      = (*Inspector)(nil)
)

// Inspect returns the inspector of a ledger.
func Inspect(ledger *Ledger) *Inspector { return inspectorOn(ledger, ledger) }

// InspectOwnTable returns the inspector of a ledger on a table of the application's own. Its
// Diagnose leaves out carried messages and orphans: there are none.
func InspectOwnTable(ledger *OwnLedger) *Inspector { return inspectorOn(ledger, ledger.reads) }

func inspectorOn(ledger driver.Ledger, on *Ledger) *Inspector {
	i := &Inspector{ledger: ledger, on: on}
	i.carried = inspection.NewCarried(ledger, on.db, carriedStatements, inspection.CarriedVerbs{
		Classify: i.classify,
		In: func(statement string) string {
			if on.versioned.Load() {
				statement = strings.Replace(statement, "$past, ", "", 1)
			}
			return on.schema.In(strings.Replace(statement, "$past", "READCOMMITTEDLOCK, READPAST, ROWLOCK", 1))
		},
		Ask: func(ctx context.Context, ask func(context.Context, sqlx.QueryerContext) error) error {
			return try(ctx, func(ctx context.Context) error { return ask(ctx, on.db) })
		},
		Change: func(ctx context.Context, change func(context.Context, sqlx.ExecerContext) error) error {
			return try(ctx, func(ctx context.Context) error { return change(ctx, on.db) })
		},
	})
	return i
}

func (i *Inspector) classify(err error) error {
	return classify(i.on.schema, err, i.on.rightsTo(portable.Settling))
}

// table returns the table of the IDs, as written in a statement.
func (i *Inspector) table() string { return i.on.schema.In(i.on.table) }
