package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

var (
	orphanVersions = strings.Replace(orphans, "$hints", "", 1)
	orphansPast    = strings.Replace(orphans, "$hints", " WITH (READCOMMITTEDLOCK, READPAST, ROWLOCK)", 1)
)

// timeText is the format of a datetime2(3) as a parameter. parseTime reads the server's
// texts.
const timeText = "2006-01-02T15:04:05.000"

// orphans reads the whole ledger, as it was committed or without locked rows. It waits for a change
// of the table, and fails after a second. Ages are in whole seconds.
func (l *Ledger) orphans(ctx context.Context, age time.Duration, limit int) ([]portable.OrphanRow, error) {
	var rows []struct {
		ID         []byte
		RecordedAt sql.NullString `db:"recorded_at"`
	}
	text := orphansPast
	if l.versioned.Load() {
		text = orphanVersions
	}
	seconds := int64((age + time.Second - 1) / time.Second)
	err := try(ctx, func(ctx context.Context) error {
		rows = nil
		return l.db.SelectContext(ctx, &rows, l.schema.In(text), seconds, limit, argument(l.Identity()))
	})
	if err != nil {
		return nil, err
	}
	found := make([]portable.OrphanRow, len(rows))
	for i, row := range rows {
		if row.ID == nil {
			continue // there are no orphans
		}
		id, err := readID(row.ID)
		if err != nil {
			return nil, err
		}
		found[i].ID = uuid.NullUUID{UUID: id, Valid: true}
		if found[i].RecordedAt.Time, err = parseTime(row.RecordedAt); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (l *Ledger) sweptBefore(ctx context.Context) (time.Time, error) {
	// All rows are read, so that the driver need not cancel the statement.
	var rows []struct {
		SweptBefore   sql.NullString `db:"swept_before"`
		Updateability sql.NullString
	}
	err := try(ctx, func(ctx context.Context) error {
		return l.db.SelectContext(ctx, &rows, l.schema.In(sweptBefore), argument(l.Identity()))
	})
	switch {
	case err != nil:
		return time.Time{}, err
	case len(rows) == 0:
		return time.Time{}, sql.ErrNoRows
	case rows[0].Updateability.String != readWrite:
		return time.Time{}, fmt.Errorf("%w: the database is %q", bridge.ErrNotPrimary, rows[0].Updateability.String)
	}
	return parseTime(rows[0].SweptBefore)
}

func (l *Ledger) raise(ctx context.Context, before time.Time) error {
	var changed int
	err := try(ctx, func(ctx context.Context) (err error) {
		changed, err = portable.Changed(l.db.ExecContext(ctx, l.schema.In(raise), before.Format(timeText), argument(l.Identity())))
		return err
	})
	if err != nil {
		return err
	}
	return portable.ExpectChanged(changed, 1, l.Identity())
}

// sweep skips locked rows.
func (l *Ledger) sweep(ctx context.Context, ids []uuid.UUID, before time.Time) ([]uuid.UUID, error) {
	swept, _, err := sweep.run(ids, l.change(ctx, before.Format(timeText)))
	return swept, err
}
