package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// Times are whole seconds, rounded down.
const (
	// At least one row if the identity is right, with nulls if there are no orphans.
	orphans = `SELECT o.id, o.recorded_at FROM bridge_identity i LEFT JOIN (
	SELECT l.id, l.recorded_at FROM bridge_ledger l
	WHERE l.recorded_at < unixepoch() - ? AND l.stage_at IS NULL
	ORDER BY l.recorded_at, l.id LIMIT ?
) o WHERE i.identity = ? ORDER BY o.recorded_at, o.id`

	raise = `UPDATE bridge_watermark SET swept_before = max(coalesce(swept_before, ?1), ?1)
WHERE EXISTS (SELECT 1 FROM bridge_identity WHERE identity = ?2)`

	sweep = `DELETE FROM bridge_ledger WHERE id IN (SELECT value FROM json_each(?)) AND recorded_at < ? AND stage_at IS NULL RETURNING id`

	sweptBefore = `SELECT w.swept_before FROM bridge_identity i CROSS JOIN bridge_watermark w WHERE i.identity = ?`
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
