package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

const (
	// At least one row if the identity is right, with nulls if there are no orphans.
	orphans = `SELECT o.id, o.recorded_at FROM bridge_identity i LEFT JOIN LATERAL (
	SELECT l.id, l.recorded_at FROM bridge_ledger l
	WHERE l.recorded_at < now() - $2::text::interval AND l.stage_at IS NULL
	ORDER BY l.recorded_at, l.id LIMIT $3::text::int
) o ON true WHERE i.identity = $1::text::uuid ORDER BY o.recorded_at, o.id`

	raise = `UPDATE bridge_watermark SET swept_before = greatest(swept_before, $2::text::timestamptz)
WHERE EXISTS (SELECT FROM bridge_identity WHERE identity = $1::text::uuid)`

	sweep = `WITH free AS MATERIALIZED (
	SELECT id FROM bridge_ledger WHERE id ` + amongIDs + ` AND recorded_at < $2::text::timestamptz AND stage_at IS NULL
	FOR UPDATE SKIP LOCKED
)
DELETE FROM bridge_ledger l USING free WHERE l.id = free.id RETURNING l.id`

	sweptBefore = `SELECT w.swept_before, pg_is_in_recovery() AS standby
FROM bridge_identity i CROSS JOIN bridge_watermark w WHERE i.identity = $1::text::uuid`
)

// orphans reads the whole ledger in one snapshot.
func (l *Ledger) orphans(ctx context.Context, age time.Duration, limit int) (rows []portable.OrphanRow, err error) {
	err = l.db.SelectContext(ctx, &rows, l.schema.In(orphans), l.Identity().String(), interval(age), strconv.Itoa(limit))
	return rows, err
}

// interval returns an age as a parameter.
func interval(age time.Duration) string {
	return strconv.FormatInt(age.Microseconds(), 10) + " microseconds"
}

func (l *Ledger) sweptBefore(ctx context.Context) (time.Time, error) {
	var row struct {
		SweptBefore sql.NullTime `db:"swept_before"`
		Standby     bool
	}
	err := l.db.GetContext(ctx, &row, l.schema.In(sweptBefore), l.Identity().String())
	if err == nil && row.Standby {
		err = fmt.Errorf("%w: the server is in recovery", bridge.ErrNotPrimary)
	}
	if err != nil || !row.SweptBefore.Valid {
		return time.Time{}, err
	}
	return row.SweptBefore.Time.UTC(), nil
}

func (l *Ledger) raise(ctx context.Context, before time.Time) error {
	changed, err := portable.Changed(l.db.ExecContext(ctx, l.schema.In(raise), l.Identity().String(), before.Format(time.RFC3339Nano)))
	if err != nil {
		return err
	}
	return portable.ExpectChanged(changed, 1, l.Identity())
}

func (l *Ledger) sweep(ctx context.Context, ids []uuid.UUID, before time.Time) (swept []uuid.UUID, err error) {
	err = l.db.SelectContext(ctx, &swept, l.schema.In(sweep), array(ids), before.Format(time.RFC3339Nano))
	return swept, err
}
