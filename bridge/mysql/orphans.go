package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// Times stand in the statements, and come back, as text: what the driver makes of a
// DATETIME depends on how it has connected. %[5]s is the time, or the age in
// microseconds, %[6]d the limit.
const (
	// One row at least if the identity is right, with nulls if there are none.
	orphans = `SELECT o.id, CAST(o.recorded_at AS CHAR) AS recorded_at FROM bridge_identity i LEFT JOIN (
	SELECT l.id, l.recorded_at FROM bridge_ledger l LEFT JOIN ` + parkedByKey + ` ON p.id = l.id
	WHERE l.recorded_at < UTC_TIMESTAMP(6) - INTERVAL %[5]s MICROSECOND AND p.id IS NULL
	ORDER BY l.recorded_at, l.id LIMIT %[6]d
) o ON 1 = 1 WHERE i.one = 1 AND i.identity = UNHEX('%[2]s') ORDER BY o.recorded_at, o.id`

	// The affected rows are 0 too if it is that high already.
	raise = `UPDATE bridge_watermark SET swept_before = GREATEST(COALESCE(swept_before, '%[5]s'), '%[5]s') WHERE one = 1`

	// The rows are locked first, as there is no DELETE that skips what is locked.
	lockOld = `SELECT l.id FROM ` + ids + ` STRAIGHT_JOIN ` + ledgerByKey + ` ON l.id = ids.id
WHERE l.recorded_at < '%[5]s' FOR UPDATE SKIP LOCKED`

	sweptBefore = `SELECT CAST(w.swept_before AS CHAR) AS swept_before, ` + readOnly + `
FROM bridge_identity i JOIN bridge_watermark w ON w.one = 1 WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`
)

// timeText is a DATETIME(6) as text.
const timeText = "2006-01-02 15:04:05.000000"

// Orphans reads the whole ledger in one snapshot.
func (l *Ledger) Orphans(ctx context.Context, age time.Duration, limit int) ([]driver.Orphan, error) {
	found, err := l.listOrphans(ctx, age, limit)
	if err != nil {
		return nil, fmt.Errorf("list orphans: %w", classify(err))
	}
	return found, nil
}

// Sweep deletes by key, a thousand rows per transaction, which it locks FOR UPDATE SKIP
// LOCKED.
func (l *Ledger) Sweep(ctx context.Context, age time.Duration, limit int) ([]driver.Orphan, error) {
	swept, err := tables.Sweep{List: l.listOrphans, Raise: l.raise, Remove: l.sweep, Tick: time.Microsecond}.Run(ctx, age, limit)
	if err != nil {
		return swept, fmt.Errorf("sweep: %w", classify(err))
	}
	return swept, nil
}

// SweptBefore reads the watermark, of the ledger that was opened and on a server that
// is not read-only.
func (l *Ledger) SweptBefore(ctx context.Context) (before time.Time, err error) {
	err = readCommitted(ctx, l.db, func(tx *sqlx.Tx) error {
		before, err = l.sweptBefore(ctx, tx)
		return err
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("read the watermark: %w", classify(err))
	}
	return before, nil
}

func (l *Ledger) sweptBefore(ctx context.Context, tx *sqlx.Tx) (time.Time, error) {
	var row struct {
		SweptBefore sql.NullString `db:"swept_before"`
		ReadOnly    string         `db:"read_only"`
	}
	err := tx.GetContext(ctx, &row, l.statement(sweptBefore, ""))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return time.Time{}, tables.OtherLedger(l.identity)
	case err != nil:
		return time.Time{}, err
	}
	if err := takesWrites(row.ReadOnly); err != nil || !row.SweptBefore.Valid {
		return time.Time{}, err
	}
	return time.Parse(timeText, row.SweptBefore.String)
}

func (l *Ledger) listOrphans(ctx context.Context, age time.Duration, limit int) (found []driver.Orphan, err error) {
	if err := tables.CheckAge(age, limit); err != nil {
		return nil, err
	}
	statement := l.timed(orphans, nil, fmt.Sprint(age.Microseconds()), limit)
	err = readCommitted(ctx, l.db, func(tx *sqlx.Tx) error {
		found, err = l.readOrphans(ctx, tx, statement)
		return err
	})
	return found, err
}

func (l *Ledger) readOrphans(ctx context.Context, tx *sqlx.Tx, statement string) (found []driver.Orphan, err error) {
	var rows []struct {
		ID         uuid.NullUUID
		RecordedAt sql.NullString `db:"recorded_at"`
	}
	if err := tx.SelectContext(ctx, &rows, statement); err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, tables.OtherLedger(l.identity)
	}
	for _, row := range rows {
		if !row.ID.Valid {
			continue // there are none
		}
		at, err := time.Parse(timeText, row.RecordedAt.String)
		if err != nil {
			return nil, err
		}
		found = append(found, driver.Orphan{ID: row.ID.UUID, RecordedAt: at})
	}
	return found, nil
}

func (l *Ledger) raise(ctx context.Context, before time.Time) error {
	return readCommitted(ctx, l.db, func(tx *sqlx.Tx) error {
		if err := l.expectOwn(ctx, tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, l.timed(raise, nil, before.Format(timeText), 0))
		return err
	})
}

func (l *Ledger) sweep(ctx context.Context, ids []uuid.UUID, before time.Time) (swept []uuid.UUID, err error) {
	err = readCommitted(ctx, l.db, func(tx *sqlx.Tx) error {
		swept = nil
		err := tx.SelectContext(ctx, &swept, l.timed(lockOld, ids, before.Format(timeText), 0))
		if err != nil || len(swept) == 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, l.statement(forget, array(swept)))
		return err
	})
	return swept, err
}

// timed fills in a statement with a time or an age, and a limit.
func (l *Ledger) timed(format string, ids []uuid.UUID, when string, limit int) string {
	return fmt.Sprintf(format, array(ids), digits(l.identity), l.column.byIndex(), l.column.name, when, limit)
}
