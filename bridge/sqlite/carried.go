package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
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

// claim claims nothing if another writer is too slow. The claim is on the disk when claim returns,
// whatever the connection's synchronous is, because Cancel relies on it.
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
		return durably(ctx, conn, func() error {
			return conn.SelectContext(ctx, &messages, claim, string(text))
		})
	})
	return messages, err
}

// durably runs a statement that writes, and commits it with synchronous at full or above: SQLite
// then syncs the WAL before the statement returns. An error other than SQLITE_BUSY leaves the
// connection at full; its caller closes it.
func durably(ctx context.Context, conn *sqlx.Conn, write func() error) error {
	var usual int
	if err := conn.GetContext(ctx, &usual, `PRAGMA synchronous`); err != nil {
		return fmt.Errorf("read synchronous: %w", err)
	}
	if usual >= synchronousFull {
		return write()
	}
	set := func(level int) error {
		if _, err := conn.ExecContext(ctx, fmt.Sprintf(`PRAGMA synchronous = %d`, level)); err != nil {
			return fmt.Errorf("set synchronous: %w", err)
		}
		return nil
	}
	if err := set(synchronousFull); err != nil {
		return err
	}
	err := write()
	if err == nil || isBusy(err) {
		err = errors.Join(err, set(usual))
	}
	return err
}

// touchCarried changes nothing if another writer is too slow.
func (l *Ledger) touchCarried(ctx context.Context, ids []uuid.UUID) error {
	_, err := l.withBriefWait(ctx, func(conn *sqlx.Conn) error {
		_, err := conn.ExecContext(ctx, touchCarried, array(ids))
		return err
	})
	return err
}
