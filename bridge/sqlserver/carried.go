package sqlserver

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

var (
	dueVersions = strings.Replace(dueRows, "$reading", readingVersions, 1)
	duePast     = strings.Replace(dueRows, "$reading", readingPast, 1)
)

// carry uses one statement for the messages of a chunk.
func (l *Ledger) carry(ctx context.Context, tx bridge.Tx, stage portable.Stage, messages []driver.Carried) (changed int64, err error) {
	var ids []uuid.UUID
	var pieces, all []byte
	for _, m := range messages {
		ids = append(ids, m.ID)
		pieces = binary.BigEndian.AppendUint32(pieces, uint32(len(all)+1))
		pieces = binary.BigEndian.AppendUint32(pieces, uint32(len(m.Message)))
		all = append(all, m.Message...)
	}
	grace := int64(0)
	if stage.Published {
		grace = driver.PublishedGrace.Milliseconds()
	}
	text, packed, used := carry.fill(l.schema, ids)
	return tx.Exec(ctx, text, packed, used, filled(pieces, len(packed)/2), filled(all, room(len(all), bytesRooms)), argument(l.Identity()), grace, stage.NotBefore.Format(timeText))
}

func (l *Ledger) cancel(ctx context.Context, tx bridge.Tx, id uuid.UUID) (int64, error) {
	return tx.Exec(ctx, l.schema.In(cancelRow), argument(id))
}

// filled returns b, extended with zeros to a length.
func filled(b []byte, length int) []byte { return append(b, make([]byte, length-len(b))...) }

// due reads the rows committed when the statement began, or skips locked rows.
func (l *Ledger) due(ctx context.Context, after driver.DueRow, limit int) ([]portable.DueRow, error) {
	var rows []struct {
		Now        sql.NullString
		ID         []byte
		RecordedAt sql.NullString `db:"recorded_at"`
		StageAt    sql.NullString `db:"stage_at"`
		Bytes      sql.NullInt64
	}
	text := duePast
	if l.versioned.Load() {
		text = dueVersions
	}
	err := try(ctx, func(ctx context.Context) error {
		rows = nil
		return l.db.SelectContext(ctx, &rows, l.schema.In(text), after.StageAt.UTC().Format(timeText), limit, argument(l.Identity()), argument(after.ID))
	})
	if mssql.Number(err) == mssql.LockTimeout {
		// the setting may have changed: then the next look uses the other statement
		err = errors.Join(err, l.readSetting(ctx, l.db))
	}
	if err != nil {
		return nil, err
	}
	due := make([]portable.DueRow, len(rows))
	for i, row := range rows {
		d := &due[i]
		if d.Now, err = parseTime(row.Now); err != nil {
			return nil, err
		}
		if row.ID == nil {
			continue // no row is due
		}
		d.ID.Valid, d.RecordedAt.Valid, d.StageAt.Valid = true, true, true
		if d.ID.UUID, err = readID(row.ID); err != nil {
			return nil, err
		}
		if d.RecordedAt.Time, err = parseTime(row.RecordedAt); err != nil {
			return nil, err
		}
		if d.StageAt.Time, err = parseTime(row.StageAt); err != nil {
			return nil, err
		}
		d.Bytes = row.Bytes
	}
	return due, nil
}

// claim skips locked rows. If an answer is lost, its rows are due again at their new stage times.
func (l *Ledger) claim(ctx context.Context, rows []driver.DueRow) (claimed []driver.Carried, err error) {
	ids := make([]uuid.UUID, len(rows))
	stageAt := make(map[uuid.UUID]time.Time, len(rows))
	for i, row := range rows {
		ids[i], stageAt[row.ID] = row.ID, row.StageAt
	}
	_, _, err = claimRows.run(ids, func(s statement, ids []uuid.UUID) (changed []uuid.UUID, err error) {
		text, packed, used := s.fill(l.schema, ids)
		var times []byte
		for _, id := range ids {
			times = binary.BigEndian.AppendUint64(times, uint64(stageAt[id].UnixMilli()))
		}
		times = filled(times, len(packed)/2)
		var found []struct{ ID, Message []byte }
		err = try(ctx, func(ctx context.Context) error {
			found = nil
			return sqlx.SelectContext(ctx, l.db, &found, text, packed, used, times)
		})
		if err != nil {
			return nil, err
		}
		column := make([][]byte, len(found))
		for i, row := range found {
			column[i] = row.ID
		}
		if changed, err = readChanged(column, ids); err != nil {
			return nil, err
		}
		for i, row := range found {
			claimed = append(claimed, driver.Carried{ID: changed[i], Message: row.Message})
		}
		return changed, nil
	})
	return claimed, err
}

// touch skips locked rows.
func (l *Ledger) touch(ctx context.Context, ids []uuid.UUID) error {
	_, _, err := touchCarried.run(ids, l.change(ctx))
	return err
}
