package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// orphans reads the whole ledger as of the last commit.
func (l *Ledger) orphans(ctx context.Context, age time.Duration, limit int) ([]portable.OrphanRow, error) {
	var rows []struct {
		ID         uuid.NullUUID
		RecordedAt sql.NullInt64 `db:"recorded_at"`
	}
	seconds := int64((age + time.Second - 1) / time.Second)
	err := l.db.SelectContext(ctx, &rows, orphans, seconds, limit, l.Identity().String())
	found := make([]portable.OrphanRow, len(rows))
	for i, row := range rows {
		found[i] = portable.OrphanRow{ID: row.ID, RecordedAt: sql.NullTime{Time: time.Unix(row.RecordedAt.Int64, 0)}}
	}
	return found, err
}

func (l *Ledger) sweptBefore(ctx context.Context) (time.Time, error) {
	var before sql.NullInt64
	err := l.db.GetContext(ctx, &before, sweptBefore, l.Identity().String())
	if err != nil || !before.Valid {
		return time.Time{}, err
	}
	return time.Unix(before.Int64, 0).UTC(), nil
}

func (l *Ledger) raise(ctx context.Context, before time.Time) error {
	changed, err := portable.Changed(l.db.ExecContext(ctx, raise, before.Unix(), l.Identity().String()))
	if err != nil {
		return err
	}
	return portable.ExpectChanged(changed, 1, l.Identity())
}

func (l *Ledger) sweep(ctx context.Context, ids []uuid.UUID, before time.Time) (swept []uuid.UUID, err error) {
	err = l.db.SelectContext(ctx, &swept, sweep, array(ids), before.Unix())
	return swept, err
}
