package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// timeText is the text format of a DATETIME(6).
const timeText = "2006-01-02 15:04:05.000000"

// orphans reads the whole ledger in one snapshot.
func (l *Ledger) orphans(ctx context.Context, age time.Duration, limit int) ([]portable.OrphanRow, error) {
	var rows []struct {
		ID         uuid.NullUUID
		RecordedAt sql.NullString `db:"recorded_at"`
	}
	err := readCommitted(ctx, l.db, func(tx *sqlx.Tx) error {
		rows = nil
		return tx.SelectContext(ctx, &rows, l.timed(orphans, nil, fmt.Sprint(age.Microseconds()), limit))
	})
	if err != nil {
		return nil, err
	}
	found := make([]portable.OrphanRow, len(rows))
	for i, row := range rows {
		found[i].ID = row.ID
		if !row.ID.Valid {
			continue // there are no orphans
		}
		if found[i].RecordedAt.Time, err = time.Parse(timeText, row.RecordedAt.String); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (l *Ledger) sweptBefore(ctx context.Context) (time.Time, error) {
	var row struct {
		SweptBefore sql.NullString `db:"swept_before"`
		ReadOnly    string         `db:"read_only"`
	}
	err := readCommitted(ctx, l.db, func(tx *sqlx.Tx) error {
		return tx.GetContext(ctx, &row, l.statement(sweptBefore, ""))
	})
	if err == nil {
		err = takesWrites(row.ReadOnly)
	}
	if err != nil || !row.SweptBefore.Valid {
		return time.Time{}, err
	}
	return time.Parse(timeText, row.SweptBefore.String)
}

func (l *Ledger) raise(ctx context.Context, before time.Time) error {
	return keepingLocks(ctx, l.db, func(tx *sqlx.Tx) error {
		if err := l.expectOwn(ctx, tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, l.timed(raise, nil, before.Format(timeText), 0))
		return err
	})
}

// expectOwn returns an error unless the identity is in the transaction's database.
func (l *Ledger) expectOwn(ctx context.Context, tx *sqlx.Tx) error {
	var n int
	err := tx.GetContext(ctx, &n, l.statement(own, ""))
	if err == nil && n == 0 {
		err = portable.OtherLedger(l.Identity())
	}
	return err
}

// sweep first locks the rows to delete, FOR UPDATE SKIP LOCKED.
func (l *Ledger) sweep(ctx context.Context, ids []uuid.UUID, before time.Time) (swept []uuid.UUID, err error) {
	err = keepingLocks(ctx, l.db, func(tx *sqlx.Tx) error {
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

// timed inserts a time or an age, and a limit, into a statement.
func (l *Ledger) timed(format string, ids []uuid.UUID, when string, limit int) string {
	return l.statement(format, array(ids), when, limit)
}
