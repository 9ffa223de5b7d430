package sqlserver

import (
	"context"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// skipLocked is a statement that changes rows by their IDs, skips locked rows, and returns the IDs
// of the changed rows. READPAST skips a locked row, but not a page; and no document promises that
// it skips a row that optimized locking protects by its transaction's ID. There the time-out ends
// the statement, and each row is tried alone.
type skipLocked struct{ all, alone statement }

// newSkipLocked makes both statements of a text in which $wait stands for the time-out in
// milliseconds. columns is forEach's argument.
func newSkipLocked(columns, text string) skipLocked {
	return skipLocked{all: forEach(columns, text, "$wait", "1000"), alone: forEach(columns, text, "$wait", "0")}
}

// run returns the IDs of the changed rows, and the IDs of rows that certainly are locked.
func (p skipLocked) run(ids []uuid.UUID, change func(s statement, ids []uuid.UUID) ([]uuid.UUID, error)) (changed, locked []uuid.UUID, err error) {
	changed, err = change(p.all, ids)
	if mssql.Number(err) != mssql.LockTimeout {
		return changed, nil, err
	}
	for _, id := range ids {
		one, err := change(p.alone, []uuid.UUID{id})
		switch {
		case mssql.Number(err) == mssql.LockTimeout:
			locked = append(locked, id)
		case err != nil:
			return nil, nil, err
		}
		changed = append(changed, one...)
	}
	return changed, locked, nil
}

// change runs a statement in a transaction of its own.
func (l *Ledger) change(ctx context.Context, further ...any) func(s statement, ids []uuid.UUID) ([]uuid.UUID, error) {
	return func(s statement, ids []uuid.UUID) (changed []uuid.UUID, err error) {
		err = try(ctx, func(ctx context.Context) (err error) {
			changed, err = s.change(ctx, l.db, l.schema, ids, further...)
			return err
		})
		return changed, err
	}
}

func (s statement) change(ctx context.Context, q sqlx.QueryerContext, in schema.Name, ids []uuid.UUID, further ...any) ([]uuid.UUID, error) {
	text, packed, used := s.fill(in, ids)
	var rows [][]byte
	if err := sqlx.SelectContext(ctx, q, &rows, text, append([]any{packed, used}, further...)...); err != nil {
		return nil, err
	}
	return readChanged(rows, ids)
}
