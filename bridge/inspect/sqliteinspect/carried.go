package sqliteinspect

import (
	"context"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
)

// The rows that carry messages. The statements read the last commit.
const (
	countCarried = `SELECT count(*) FROM (SELECT 1 FROM bridge_ledger WHERE stage_at IS NOT NULL LIMIT ?)`

	carriedColumns = `SELECT id, recorded_at * 1000 AS recorded_ms, stage_at AS stage_ms, length(message) AS bytes
FROM bridge_ledger`

	carriedRows = carriedColumns + ` WHERE stage_at IS NOT NULL ORDER BY stage_at, id LIMIT ?`
	delayedRows = carriedColumns + ` WHERE stage_at > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AND stage_at <= recorded_at * 1000 ORDER BY stage_at, id LIMIT ?`
	carriedRow  = carriedColumns + ` WHERE id = ? AND stage_at IS NOT NULL`
)

// CountCarried reads the index on the stage time, up to limit rows.
func (i *Inspector) CountCarried(ctx context.Context, limit int) (int, error) {
	return i.carried().CountCarried(ctx, limit)
}

// CarriedRows reads along the index on the stage time.
func (i *Inspector) CarriedRows(ctx context.Context, limit int) ([]inspect.CarriedRow, error) {
	return i.carried().CarriedRows(ctx, limit)
}

// DelayedRows reads along the index on the stage time, from now on.
func (i *Inspector) DelayedRows(ctx context.Context, limit int) ([]inspect.CarriedRow, error) {
	return i.carried().DelayedRows(ctx, limit)
}

// CarriedRow reads the row by its key.
func (i *Inspector) CarriedRow(ctx context.Context, id uuid.UUID) (*inspect.CarriedRow, error) {
	return i.carried().CarriedRow(ctx, id)
}

func (i *Inspector) carried() inspection.Carried {
	return inspection.Carried{
		Ledger: i.ledger, Watched: i.on, Count: countCarried, Rows: carriedRows, Delayed: delayedRows, Row: carriedRow,
		ID: func(id uuid.UUID) any { return id.String() },
	}
}
