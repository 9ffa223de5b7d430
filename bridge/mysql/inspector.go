package mysql

import (
	"context"
	"database/sql"

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

// InspectOwnTable returns the inspector of a ledger on a table of the application's own. Its Diagnose
// leaves out carried messages and orphans: there are none.
func InspectOwnTable(ledger *OwnLedger) *Inspector { return inspectorOn(ledger, ledger.reads) }

func inspectorOn(ledger driver.Ledger, on *Ledger) *Inspector {
	return &Inspector{ledger: ledger, on: on, carried: inspection.NewCarried(ledger, on.db, carriedStatements, inspection.CarriedVerbs{
		Classify: classify,
		ID:       func(id uuid.UUID) any { return digits(id) },
		Ask: func(ctx context.Context, ask func(context.Context, sqlx.QueryerContext) error) error {
			tx, err := on.db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			return ask(ctx, tx)
		},
		Change: func(ctx context.Context, change func(context.Context, sqlx.ExecerContext) error) error {
			tx, err := on.db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			if err != nil {
				return err
			}
			if err := change(ctx, tx); err != nil {
				_ = tx.Rollback()
				return err
			}
			return tx.Commit()
		},
	})}
}
