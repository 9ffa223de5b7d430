package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// orphans reads the whole ledger in one snapshot.
func (l *Ledger) orphans(ctx context.Context, age time.Duration, limit int) ([]portable.OrphanRow, error) {
	var rows []struct {
		ID         uuid.NullUUID
		RecordedAt moment `db:"recorded_at"`
	}
	err := l.db.SelectContext(ctx, &rows, l.schema.In(orphans), l.Identity().String(), interval(age), strconv.Itoa(limit))
	found := make([]portable.OrphanRow, len(rows))
	for i, row := range rows {
		found[i] = portable.OrphanRow{ID: row.ID, RecordedAt: row.RecordedAt.NullTime}
	}
	return found, err
}

// interval returns an age as a parameter.
func interval(age time.Duration) string {
	return strconv.FormatInt(age.Microseconds(), 10) + " microseconds"
}

func (l *Ledger) sweptBefore(ctx context.Context) (time.Time, error) {
	var row struct {
		SweptBefore moment `db:"swept_before"`
		Standby     bool
	}
	err := l.db.GetContext(ctx, &row, l.schema.In(sweptBefore), l.Identity().String())
	if err == nil && row.Standby {
		err = fmt.Errorf("%w: the server is in recovery", bridge.ErrNotPrimary)
	}
	if err != nil || !row.SweptBefore.Valid {
		return time.Time{}, err
	}
	return row.SweptBefore.Time, nil
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
