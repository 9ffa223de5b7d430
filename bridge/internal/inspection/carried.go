package inspection

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// Carried is an inspect.CarriedReader of a ledger by the statements of its database.
type Carried struct {
	Ledger driver.Ledger
	tables.Watched
	// Count is a statement whose one number is that of the rows, up to its parameter. Row is one
	// that returns recorded_ms and stage_ms, in milliseconds since 1970, and bytes of the row whose
	// ID is its parameter, or nothing.
	Count, Row string
	// ID returns an ID as a parameter.
	ID func(uuid.UUID) any
	// Ask runs a statement so that it reads only committed rows. Nil: on the pool as it is.
	Ask func(ctx context.Context, ask func(ctx context.Context, db sqlx.QueryerContext) error) error
}

// CountCarried counts up to limit rows.
func (c Carried) CountCarried(ctx context.Context, limit int) (n int, err error) {
	err = c.ask(ctx, "count carried rows", func(ctx context.Context, db sqlx.QueryerContext) error {
		return sqlx.GetContext(ctx, db, &n, c.Count, limit)
	})
	return n, err
}

// CarriedRow reads a row by its key.
func (c Carried) CarriedRow(ctx context.Context, id uuid.UUID) (*inspect.CarriedRow, error) {
	var rows []struct {
		RecordedMS int64 `db:"recorded_ms"`
		StageMS    int64 `db:"stage_ms"`
		Bytes      int64
	}
	err := c.ask(ctx, "read carried row "+id.String(), func(ctx context.Context, db sqlx.QueryerContext) error {
		rows = nil
		return sqlx.SelectContext(ctx, db, &rows, c.Row, c.ID(id))
	})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	row := rows[0]
	return &inspect.CarriedRow{RecordedAt: time.UnixMilli(row.RecordedMS).UTC(), StageAt: time.UnixMilli(row.StageMS).UTC(), Bytes: row.Bytes}, nil
}

func (c Carried) ask(ctx context.Context, doing string, ask func(ctx context.Context, db sqlx.QueryerContext) error) error {
	if !c.Ledger.Features().Carries {
		return tables.Unsupported(doing, "a ledger on an own table")
	}
	if c.Ask == nil {
		c.Ask = func(ctx context.Context, ask func(ctx context.Context, db sqlx.QueryerContext) error) error {
			return ask(ctx, c.DB)
		}
	}
	if err := c.Ask(ctx, ask); err != nil {
		return fmt.Errorf("%s: %w", doing, c.Classify(err))
	}
	return nil
}
