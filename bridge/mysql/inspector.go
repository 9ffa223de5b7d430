package mysql

import (
	"context"
	"database/sql"
	"strings"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/inspection"
)

// The rows that carry messages.
const (
	countCarried = `SELECT COUNT(*) FROM (
	SELECT 1 FROM bridge_ledger l FORCE INDEX (bridge_ledger_stage_at) WHERE l.stage_at IS NOT NULL LIMIT ?
) carried`

	carriedColumns = `SELECT HEX(l.id) AS id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.recorded_at) DIV 1000 AS recorded_ms,
	TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.stage_at) DIV 1000 AS stage_ms, OCTET_LENGTH(l.message) AS bytes
FROM bridge_ledger l`

	carriedRows = carriedColumns + ` FORCE INDEX (bridge_ledger_stage_at) WHERE l.stage_at IS NOT NULL ORDER BY l.stage_at, l.id LIMIT ?`
	carriedRow  = carriedColumns + ` WHERE l.id = UNHEX(?) AND l.stage_at IS NOT NULL`

	countDelayed = `SELECT COUNT(*) FROM (
	SELECT 1 FROM bridge_ledger l FORCE INDEX (bridge_ledger_stage_at) WHERE l.stage_at > UTC_TIMESTAMP(6) AND l.stage_at <= l.recorded_at LIMIT ?
) carried`

	delayedRows = carriedColumns + ` FORCE INDEX (bridge_ledger_stage_at) WHERE l.stage_at > UTC_TIMESTAMP(6) AND l.stage_at <= l.recorded_at ORDER BY l.stage_at, l.id LIMIT ?`

	// A server reads UTC_TIMESTAMP once per statement.
	advance = `UPDATE bridge_ledger SET recorded_at = UTC_TIMESTAMP(6), stage_at = UTC_TIMESTAMP(6)
WHERE id = UNHEX(?) AND stage_at <= recorded_at AND stage_at > UTC_TIMESTAMP(6)`
)

// An Inspector inspects a ledger. It implements inspect.Diagnoser, inspect.Watcher,
// inspect.CarriedReader and inspect.Advancer.
type Inspector struct {
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
func Inspect(ledger *Ledger) *Inspector {
	return &Inspector{ledger, ledger}
}

// InspectOwnTable returns the inspector of a ledger on a table of the application's own. Its Diagnose
// leaves out carried messages and orphans: there are none.
func InspectOwnTable(ledger *OwnLedger) *Inspector {
	return &Inspector{ledger, ledger.reads}
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
		Ledger: i.ledger, DB: i.on.db, Classify: classify, Count: countCarried, Rows: carriedRows, Row: carriedRow,
		CountWaiting: countDelayed, Waiting: delayedRows, MakeDue: advance,
		ID: func(id uuid.UUID) any { return strings.ReplaceAll(id.String(), "-", "") },
		Ask: func(ctx context.Context, ask func(context.Context, sqlx.QueryerContext) error) error {
			tx, err := i.on.db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			return ask(ctx, tx)
		},
		Change: func(ctx context.Context, change func(context.Context, sqlx.ExecerContext) error) error {
			tx, err := i.on.db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			if err != nil {
				return err
			}
			if err := change(ctx, tx); err != nil {
				_ = tx.Rollback()
				return err
			}
			return tx.Commit()
		},
	}
}
