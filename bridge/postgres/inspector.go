package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
)

// The rows that carry messages.
const (
	countCarried = `SELECT count(*) FROM (SELECT FROM bridge_ledger WHERE stage_at IS NOT NULL LIMIT $1::int) AS carried`

	carriedColumns = `SELECT id::text AS id, floor(extract(epoch FROM recorded_at) * 1000)::bigint AS recorded_ms, floor(extract(epoch FROM stage_at) * 1000)::bigint AS stage_ms,
	octet_length(message) AS bytes
FROM bridge_ledger`

	carriedRows = carriedColumns + ` WHERE stage_at IS NOT NULL ORDER BY stage_at, bridge_ledger.id LIMIT $1::int`
	carriedRow  = carriedColumns + ` WHERE id = $1::text::uuid AND stage_at IS NOT NULL`

	// The ORDER BY makes the planner read the index.
	countDelayed = `SELECT count(*) FROM (SELECT FROM bridge_ledger WHERE stage_at > now() AND stage_at <= recorded_at ORDER BY stage_at LIMIT $1::int) AS delayed`

	delayedRows = carriedColumns + ` WHERE stage_at > now() AND stage_at <= recorded_at ORDER BY stage_at, bridge_ledger.id LIMIT $1::int`

	// If a transaction was open meanwhile, the server evaluates the condition anew, with the same
	// t.
	advance = `UPDATE bridge_ledger SET recorded_at = t, stage_at = t FROM clock_timestamp() AS t
WHERE id = $1::text::uuid AND stage_at <= recorded_at AND stage_at > t`
)

// An Inspector inspects a ledger. It implements inspect.Diagnoser, inspect.Watcher,
// inspect.CarriedReader and inspect.Advancer.
type Inspector struct {
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
	return &Inspector{ledger, ledger, ledger.schema.In("bridge_ledger"), ledger.settleIn}
}

// InspectOwnTable returns the inspector of a ledger on a table of the application's own. Its
// Diagnose leaves out carried messages and orphans: there are none.
func InspectOwnTable(ledger *OwnLedger) *Inspector {
	return &Inspector{ledger, ledger.reads.ledger, ledger.reads.table, ledger.reads.settleIn}
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
		Ledger: i.ledger, DB: i.on.db, Schema: i.on.schema, Classify: i.on.classify, Count: countCarried, Rows: carriedRows, Row: carriedRow,
		CountWaiting: countDelayed, Waiting: delayedRows, MakeDue: advance,
		ID: func(id uuid.UUID) any { return id.String() },
	}
}
