package postgres

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

func (l *Ledger) carry(ctx context.Context, tx bridge.Tx, stage portable.Stage, messages []driver.Carried) (int64, error) {
	one, many := carryOnePublished, carryManyPublished
	var last []any
	if !stage.Published {
		one, many = carryOneUnpublished, carryManyUnpublished
		last = []any{stage.NotBefore.Format(time.RFC3339Nano)}
	}
	if len(messages) == 1 {
		return tx.Exec(ctx, l.schema.In(one), append([]any{messages[0].ID.String(), l.Identity().String(), portable.NotNil(messages[0].Message)}, last...)...)
	}
	ids := make([]uuid.UUID, len(messages))
	firsts, lengths := make([]int, len(messages)), make([]int, len(messages))
	all := []byte{}
	for i, m := range messages {
		ids[i], firsts[i], lengths[i] = m.ID, len(all)+1, len(m.Message)
		all = append(all, m.Message...)
	}
	return tx.Exec(ctx, l.schema.In(many), append([]any{array(ids), l.Identity().String(), all, numbers(firsts), numbers(lengths)}, last...)...)
}

func (l *Ledger) cancel(ctx context.Context, tx bridge.Tx, id uuid.UUID) (int64, error) {
	return tx.Exec(ctx, l.schema.In(cancel), array([]uuid.UUID{id}))
}

// due reads a snapshot that is no older than the returned time.
func (l *Ledger) due(ctx context.Context, after driver.DueRow, limit int) ([]portable.DueRow, error) {
	var rows []struct {
		Now        moment
		ID         uuid.NullUUID
		RecordedAt moment `db:"recorded_at"`
		StageAt    moment `db:"stage_at"`
		Bytes      sql.NullInt64
	}
	err := l.db.SelectContext(ctx, &rows, l.schema.In(due), l.Identity().String(), after.StageAt.UTC().Format(time.RFC3339Nano), after.ID.String(), strconv.Itoa(limit))
	found := make([]portable.DueRow, len(rows))
	for i, row := range rows {
		found[i] = portable.DueRow{Now: row.Now.Time, ID: row.ID, RecordedAt: row.RecordedAt.NullTime, StageAt: row.StageAt.NullTime, Bytes: row.Bytes}
	}
	return found, err
}

func (l *Ledger) claim(ctx context.Context, rows []driver.DueRow) (messages []driver.Carried, err error) {
	ids := make([]uuid.UUID, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
	}
	err = l.db.SelectContext(ctx, &messages, l.schema.In(claim), array(ids), stageTimes(rows))
	return messages, err
}

func (l *Ledger) touchCarried(ctx context.Context, ids []uuid.UUID) error {
	_, err := l.db.ExecContext(ctx, l.schema.In(touchCarried), array(ids))
	return err
}

// stageTimes returns the stage times as the text of a timestamptz[].
func stageTimes(rows []driver.DueRow) string {
	text := []byte{'{'}
	for i, row := range rows {
		if i > 0 {
			text = append(text, ',')
		}
		text = row.StageAt.UTC().AppendFormat(text, time.RFC3339Nano)
	}
	return string(append(text, '}'))
}
