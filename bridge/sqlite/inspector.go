package sqlite

import (
	"context"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
)

// An Inspector inspects a ledger. It implements inspect.Diagnoser, inspect.CarriedReader and
// inspect.Advancer.
type Inspector struct {
	ledger driver.Ledger // the inspected ledger
	db     *sqlx.DB
}

var (
	_ inspect.Diagnoser     = (*Inspector)(nil)
	_ inspect.CarriedReader = (*Inspector)(nil)
	_ inspect.Advancer      = (*Inspector)(nil)
)

// Inspect returns the inspector of a ledger.
func Inspect(ledger *Ledger) *Inspector {
	return &Inspector{ledger, ledger.db}
}

// InspectOwnTable returns the inspector of a ledger on a table of the application's own. Its
// Diagnose leaves out carried messages and orphans: there are none.
func InspectOwnTable(ledger *OwnLedger) *Inspector {
	return &Inspector{ledger, sqlx.NewDb(ledger.DB(), "sqlite")}
}

// CountCarried reads the index on the stage time, up to limit rows.
func (i *Inspector) CountCarried(ctx context.Context, limit int) (int, error) {
	return i.carried().CountCarried(ctx, limit)
}

// CarriedRows reads along the index on the stage time.
func (i *Inspector) CarriedRows(ctx context.Context, limit int) ([]inspect.CarriedRow, error) {
	return i.carried().CarriedRows(ctx, limit)
}

// CountDelayed reads the index on the stage time from the present on, up to limit rows.
func (i *Inspector) CountDelayed(ctx context.Context, limit int) (int, error) {
	return i.carried().CountDelayed(ctx, limit)
}

// DelayedRows reads along the index on the stage time from the present on.
func (i *Inspector) DelayedRows(ctx context.Context, limit int) ([]inspect.CarriedRow, error) {
	return i.carried().DelayedRows(ctx, limit)
}

// Advance changes the row by its key.
func (i *Inspector) Advance(ctx context.Context, id uuid.UUID) (bool, error) {
	return i.carried().Advance(ctx, id)
}

// CarriedRow reads the row by its key.
func (i *Inspector) CarriedRow(ctx context.Context, id uuid.UUID) (*inspect.CarriedRow, error) {
	return i.carried().CarriedRow(ctx, id)
}

func (i *Inspector) carried() inspection.Carried {
	return inspection.Carried{
		Ledger: i.ledger, DB: i.db, Classify: classify, Count: countCarried, Rows: carriedRows, Row: carriedRow,
		CountWaiting: countDelayed, Waiting: delayedRows, MakeDue: advance,
		ID: func(id uuid.UUID) any { return id.String() },
	}
}
