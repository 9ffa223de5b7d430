package inspection

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// Carried implements inspect.CarriedReader by the statements of a database.
type Carried struct {
	Ledger driver.Ledger
	DB     *sqlx.DB
	Schema schema.Name
	// Classify adds the bridge's error, with the fix, to the database's.
	Classify func(error) error
	// Count and CountWaiting return one number, the number of rows, up to their parameter. Rows and
	// Waiting return at most so many rows, and Row the row whose ID is its parameter, or nothing:
	// id as text, recorded_ms and stage_ms in milliseconds since 1970, and bytes.
	Count, Rows, Row, CountWaiting, Waiting string
	// MakeDue makes the row of its parameter due, if its time has not come.
	MakeDue string
	// ID returns an ID as a parameter.
	ID func(uuid.UUID) any
	// Ask runs a statement so that it reads only committed rows. Nil: directly on the pool.
	Ask func(ctx context.Context, ask func(ctx context.Context, db sqlx.QueryerContext) error) error
	// Change runs MakeDue so that it commits. Nil: directly on the pool.
	Change func(ctx context.Context, change func(ctx context.Context, db sqlx.ExecerContext) error) error
}

// CountCarried counts up to limit rows.
func (c Carried) CountCarried(ctx context.Context, limit int) (int, error) {
	return c.count(ctx, "count carried rows", c.Count, limit)
}

// CountDelayed counts up to limit rows whose time has not come.
func (c Carried) CountDelayed(ctx context.Context, limit int) (int, error) {
	return c.count(ctx, "count delayed rows", c.CountWaiting, limit)
}

func (c Carried) count(ctx context.Context, doing, query string, limit int) (n int, err error) {
	err = c.ask(ctx, doing, func(ctx context.Context, db sqlx.QueryerContext) error {
		return sqlx.GetContext(ctx, db, &n, c.Schema.In(query), limit)
	})
	return n, err
}

// Advance makes a row due.
func (c Carried) Advance(ctx context.Context, id uuid.UUID) (bool, error) {
	doing := "advance delayed message " + id.String()
	if !c.Ledger.Features().Carries {
		return false, portable.Unsupported(doing, "a ledger on an own table")
	}
	if c.Change == nil {
		c.Change = func(ctx context.Context, change func(ctx context.Context, db sqlx.ExecerContext) error) error {
			return change(ctx, c.DB)
		}
	}
	changed := 0
	err := c.Change(ctx, func(ctx context.Context, db sqlx.ExecerContext) (err error) {
		changed, err = portable.Changed(db.ExecContext(ctx, c.Schema.In(c.MakeDue), c.ID(id)))
		return err
	})
	if err != nil {
		return false, fmt.Errorf("%s: %w", doing, c.Classify(err))
	}
	return changed > 0, nil
}

// CarriedRow reads a row by its key.
func (c Carried) CarriedRow(ctx context.Context, id uuid.UUID) (*inspect.CarriedRow, error) {
	rows, err := c.read(ctx, "read carried row "+id.String(), c.Row, c.ID(id))
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// CarriedRows lists rows.
func (c Carried) CarriedRows(ctx context.Context, limit int) ([]inspect.CarriedRow, error) {
	return c.read(ctx, "list carried rows", c.Rows, limit)
}

// DelayedRows lists rows whose time has not come.
func (c Carried) DelayedRows(ctx context.Context, limit int) ([]inspect.CarriedRow, error) {
	return c.read(ctx, "list delayed rows", c.Waiting, limit)
}

func (c Carried) read(ctx context.Context, doing, query string, arg any) ([]inspect.CarriedRow, error) {
	var rows []struct {
		ID         string
		RecordedMS int64 `db:"recorded_ms"`
		StageMS    int64 `db:"stage_ms"`
		Bytes      int64
	}
	err := c.ask(ctx, doing, func(ctx context.Context, db sqlx.QueryerContext) error {
		rows = nil
		return sqlx.SelectContext(ctx, db, &rows, c.Schema.In(query), arg)
	})
	if err != nil {
		return nil, err
	}
	found := make([]inspect.CarriedRow, len(rows))
	for i, row := range rows {
		id, err := uuid.Parse(row.ID)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", doing, err)
		}
		found[i] = inspect.CarriedRow{ID: id, RecordedAt: time.UnixMilli(row.RecordedMS).UTC(), StageAt: time.UnixMilli(row.StageMS).UTC(), Bytes: row.Bytes}
	}
	return found, nil
}

func (c Carried) ask(ctx context.Context, doing string, ask func(ctx context.Context, db sqlx.QueryerContext) error) error {
	if !c.Ledger.Features().Carries {
		return portable.Unsupported(doing, "a ledger on an own table")
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
