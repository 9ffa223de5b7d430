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
)

// CarriedStatements are the statements of a Carried. Count and CountDelayed return one number, the
// number of rows, up to their parameter. Rows and Delayed return at most so many rows, and Row the
// row whose ID is its parameter, or nothing: id as text, recorded_ms and stage_ms in milliseconds
// since 1970, and bytes. Advance makes the row of its parameter due, if its time has not come.
type CarriedStatements struct{ Count, Rows, Row, CountDelayed, Delayed, Advance string }

// CarriedVerbs are the parts other than statements in which databases differ.
type CarriedVerbs struct {
	// Classify adds the bridge's error, with the fix, to the database's.
	Classify func(error) error
	// In returns a statement as the database takes it at present. Nil: unchanged.
	In func(statement string) string
	// ID returns an ID as a parameter. Nil: its text.
	ID func(uuid.UUID) any
	// Ask runs a statement so that it reads only committed rows. Nil: directly on the pool.
	Ask func(ctx context.Context, ask func(ctx context.Context, db sqlx.QueryerContext) error) error
	// Change runs Advance so that it commits. Nil: directly on the pool.
	Change func(ctx context.Context, change func(ctx context.Context, db sqlx.ExecerContext) error) error
}

// Carried implements inspect.CarriedReader and inspect.Advancer. An inspector embeds it.
type Carried struct {
	ledger     driver.RecordedRows
	statements CarriedStatements
	verbs      CarriedVerbs
}

// NewCarried returns the Carried of a ledger whose pool is db.
func NewCarried(ledger driver.RecordedRows, db *sqlx.DB, statements CarriedStatements, verbs CarriedVerbs) Carried {
	if verbs.In == nil {
		verbs.In = func(statement string) string { return statement }
	}
	if verbs.ID == nil {
		verbs.ID = func(id uuid.UUID) any { return id.String() }
	}
	if verbs.Ask == nil {
		verbs.Ask = func(ctx context.Context, ask func(context.Context, sqlx.QueryerContext) error) error {
			return ask(ctx, db)
		}
	}
	if verbs.Change == nil {
		verbs.Change = func(ctx context.Context, change func(context.Context, sqlx.ExecerContext) error) error {
			return change(ctx, db)
		}
	}
	return Carried{ledger, statements, verbs}
}

// CountCarried reads the index on the stage time, up to limit rows.
func (c Carried) CountCarried(ctx context.Context, limit int) (int, error) {
	return c.count(ctx, "count carried rows", c.statements.Count, limit)
}

// CountDelayed reads the index on the stage time from the present on, up to limit rows.
func (c Carried) CountDelayed(ctx context.Context, limit int) (int, error) {
	return c.count(ctx, "count delayed rows", c.statements.CountDelayed, limit)
}

func (c Carried) count(ctx context.Context, doing, statement string, limit int) (n int, err error) {
	err = c.ask(ctx, doing, func(ctx context.Context, db sqlx.QueryerContext) error {
		return sqlx.GetContext(ctx, db, &n, c.verbs.In(statement), limit)
	})
	return n, err
}

// Advance changes the row by its key.
func (c Carried) Advance(ctx context.Context, id uuid.UUID) (bool, error) {
	doing := "advance delayed message " + id.String()
	if !c.ledger.Features().Carries {
		return false, portable.Unsupported(doing, "a ledger on an own table")
	}
	changed := 0
	err := c.verbs.Change(ctx, func(ctx context.Context, db sqlx.ExecerContext) (err error) {
		changed, err = portable.Changed(db.ExecContext(ctx, c.verbs.In(c.statements.Advance), c.verbs.ID(id)))
		return err
	})
	if err != nil {
		return false, fmt.Errorf("%s: %w", doing, c.verbs.Classify(err))
	}
	return changed > 0, nil
}

// CarriedRow reads the row by its key.
func (c Carried) CarriedRow(ctx context.Context, id uuid.UUID) (*inspect.CarriedRow, error) {
	rows, err := c.read(ctx, "read carried row "+id.String(), c.statements.Row, c.verbs.ID(id))
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// CarriedRows reads along the index on the stage time.
func (c Carried) CarriedRows(ctx context.Context, limit int) ([]inspect.CarriedRow, error) {
	return c.read(ctx, "list carried rows", c.statements.Rows, limit)
}

// DelayedRows reads along the index on the stage time from the present on.
func (c Carried) DelayedRows(ctx context.Context, limit int) ([]inspect.CarriedRow, error) {
	return c.read(ctx, "list delayed rows", c.statements.Delayed, limit)
}

func (c Carried) read(ctx context.Context, doing, statement string, arg any) ([]inspect.CarriedRow, error) {
	var rows []struct {
		ID         string
		RecordedMS int64 `db:"recorded_ms"`
		StageMS    int64 `db:"stage_ms"`
		Bytes      int64
	}
	err := c.ask(ctx, doing, func(ctx context.Context, db sqlx.QueryerContext) error {
		rows = nil
		return sqlx.SelectContext(ctx, db, &rows, c.verbs.In(statement), arg)
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
	if !c.ledger.Features().Carries {
		return portable.Unsupported(doing, "a ledger on an own table")
	}
	if err := c.verbs.Ask(ctx, ask); err != nil {
		return fmt.Errorf("%s: %w", doing, c.verbs.Classify(err))
	}
	return nil
}
