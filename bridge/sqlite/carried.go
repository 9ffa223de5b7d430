package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// recorded_at is in whole seconds, stage_at in milliseconds. SQLite reads its clock once for each
// row that a statement returns.
const (
	now = `CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)`

	// driver.PublishedGrace after the record.
	carryPublished = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT ?, unixepoch(), ?, ` + now + ` + 1000 FROM bridge_identity WHERE identity = ?`

	// stage.at is the present second, or the given time if that is later. A stage time between two
	// seconds is before its recorded_at, never after it.
	carryUnpublished = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT ?, (stage.at + 999) / 1000, ?, stage.at
FROM bridge_identity CROSS JOIN (SELECT max(unixepoch() * 1000, ?) AS at) stage WHERE identity = ?`

	cancel = `DELETE FROM bridge_ledger WHERE id = ? AND stage_at <= recorded_at * 1000`

	// At least one row if the identity is right, with nulls if no row is due.
	due = `WITH look AS MATERIALIZED (SELECT ` + now + ` AS now FROM bridge_identity WHERE identity = ?)
SELECT look.now, d.id, d.recorded_at, d.stage_at, d.bytes FROM look LEFT JOIN (
	SELECT l.id, l.recorded_at, l.stage_at, length(l.message) AS bytes FROM look CROSS JOIN bridge_ledger l
	WHERE l.stage_at <= look.now AND (l.stage_at, l.id) > (?, ?) ORDER BY l.stage_at, l.id LIMIT ?
) d ORDER BY d.stage_at, d.id`

	// Between StageAgainAfter and StageAgainWithin, in milliseconds. The stage time is after
	// recorded_at even if the clock has gone back: Cancel compares both.
	later = `max(` + now + `, recorded_at * 1000) + min(max(` + now + ` - recorded_at * 1000, 10000), 600000)`

	claim = `UPDATE bridge_ledger SET stage_at = ` + later + `
WHERE (id, stage_at) IN (SELECT value ->> 'id', value ->> 'at' FROM json_each(?)) RETURNING id, message`

	touchCarried = `UPDATE bridge_ledger SET stage_at = ` + later + `
WHERE id IN (SELECT value FROM json_each(?)) AND stage_at IS NOT NULL`
)

func (l *Ledger) carry(ctx context.Context, tx bridge.Tx, stage portable.Stage, messages []driver.Carried) (changed int64, err error) {
	for _, m := range messages {
		statement, args := carryPublished, []any{m.ID.String(), portable.NotNil(m.Message)}
		if !stage.Published {
			statement, args = carryUnpublished, append(args, stage.NotBefore.UnixMilli())
		}
		n, err := tx.Exec(ctx, statement, append(args, l.Identity().String())...)
		if changed += n; err != nil {
			return changed, fmt.Errorf("message %s: %w", m.ID, err)
		}
	}
	return changed, nil
}

func (l *Ledger) cancel(ctx context.Context, tx bridge.Tx, id uuid.UUID) (int64, error) {
	return tx.Exec(ctx, cancel, id.String())
}

// due reads the last commit.
func (l *Ledger) due(ctx context.Context, after driver.DueRow, limit int) ([]portable.DueRow, error) {
	var rows []struct {
		Now        int64
		ID         uuid.NullUUID
		RecordedAt sql.NullInt64 `db:"recorded_at"`
		StageAt    sql.NullInt64 `db:"stage_at"`
		Bytes      sql.NullInt64
	}
	err := l.db.SelectContext(ctx, &rows, due, l.Identity().String(), after.StageAt.UnixMilli(), after.ID.String(), limit)
	found := make([]portable.DueRow, len(rows))
	for i, row := range rows {
		found[i] = portable.DueRow{
			Now: time.UnixMilli(row.Now), ID: row.ID, Bytes: row.Bytes,
			RecordedAt: sql.NullTime{Time: time.Unix(row.RecordedAt.Int64, 0), Valid: row.RecordedAt.Valid},
			StageAt:    sql.NullTime{Time: time.UnixMilli(row.StageAt.Int64), Valid: row.StageAt.Valid},
		}
	}
	return found, err
}

// claim claims nothing if another writer is too slow.
func (l *Ledger) claim(ctx context.Context, rows []driver.DueRow) (messages []driver.Carried, err error) {
	type key struct {
		ID uuid.UUID `json:"id"`
		At int64     `json:"at"`
	}
	keys := make([]key, len(rows))
	for i, row := range rows {
		keys[i] = key{row.ID, row.StageAt.UnixMilli()}
	}
	text, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	_, err = l.withBriefWait(ctx, func(conn *sqlx.Conn) error {
		return conn.SelectContext(ctx, &messages, claim, string(text))
	})
	return messages, err
}

// touchCarried changes nothing if another writer is too slow.
func (l *Ledger) touchCarried(ctx context.Context, ids []uuid.UUID) error {
	_, err := l.withBriefWait(ctx, func(conn *sqlx.Conn) error {
		_, err := conn.ExecContext(ctx, touchCarried, array(ids))
		return err
	})
	return err
}
