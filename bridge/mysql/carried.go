package mysql

import (
	"context"
	"database/sql"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// carry inserts the first row only if the identity is right, and the others only if the first was
// inserted. (A SELECT of the identity would begin the snapshot of a transaction at REPEATABLE READ.
// One INSERT of messages in a JSON array took MariaDB 10.11 three times as long.)
func (l *Ledger) carry(ctx context.Context, tx bridge.Tx, stage portable.Stage, messages []driver.Carried) (int64, error) {
	var grace time.Duration
	if stage.Published {
		grace = driver.PublishedGrace
	}
	recorded := recordNow
	if stage.NotBefore.After(time.Unix(0, 0)) {
		recorded = fmt.Sprintf(recordLater, stage.NotBefore.Format(timeText))
	}
	first, others := messages[0], messages[1:]
	n, err := tx.Exec(ctx, l.statement(carryOne, digits(first.ID), inBase64(first), grace.Microseconds(), recorded))
	if err != nil || n == 0 || len(others) == 0 {
		return n, err
	}
	rows := make([]string, len(others))
	for i, m := range others {
		rows[i] = fmt.Sprintf(more, digits(m.ID), inBase64(m), grace.Microseconds(), recorded)
	}
	inserted, err := tx.Exec(ctx, carryMore+strings.Join(rows, ", "))
	return n + inserted, err
}

// cancel deletes only an existing row. At REPEATABLE READ the first statement reads the
// transaction's snapshot. If the row is not in it, an INSERT either finds the row all the same, or
// takes the row's place and is deleted again: neither locks a gap beside other rows. Only for a row
// that was forgotten after the snapshot does the DELETE find nothing, and it then locks its gap
// until the transaction ends.
func (l *Ledger) cancel(ctx context.Context, tx bridge.Tx, id uuid.UUID) (int64, error) {
	var there int
	if err := portable.QueryRow(ctx, tx, l.statement(seesRow, digits(id)), nil, &there); err != nil {
		return 0, err
	}
	if there == 0 {
		inserted, err := tx.Exec(ctx, l.statement(insertPlaceholder, digits(id)))
		if err != nil {
			return 0, err
		}
		if inserted > 0 {
			_, err = tx.Exec(ctx, l.statement(deletePlaceholder, digits(id)))
			return 0, err
		}
	}
	return tx.Exec(ctx, l.statement(cancelRow, digits(id)))
}

func inBase64(m driver.Carried) string { return base64.StdEncoding.EncodeToString(m.Message) }

// due reads a snapshot.
func (l *Ledger) due(ctx context.Context, after driver.DueRow, limit int) ([]portable.DueRow, error) {
	var rows []struct {
		Now        string
		ID         uuid.NullUUID
		RecordedAt sql.NullString `db:"recorded_at"`
		StageAt    sql.NullString `db:"stage_at"`
		Bytes      sql.NullInt64
	}
	err := portable.OnConnection(ctx, l.db, func(conn *sqlx.Conn) error {
		return l.alone(ctx, conn, func() error {
			rows = nil
			return conn.SelectContext(ctx, &rows, l.statement(due, "", after.StageAt.UTC().Format(timeText), digits(after.ID), limit))
		})
	})
	if err != nil {
		return nil, err
	}
	found := make([]portable.DueRow, len(rows))
	for i, row := range rows {
		f := &found[i]
		f.ID, f.Bytes = row.ID, row.Bytes
		if f.Now, err = time.Parse(timeText, row.Now); err != nil {
			return nil, err
		}
		if !row.ID.Valid {
			continue // no row is due
		}
		if f.RecordedAt.Time, err = time.Parse(timeText, row.RecordedAt.String); err != nil {
			return nil, err
		}
		if f.StageAt.Time, err = time.Parse(timeText, row.StageAt.String); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// claim consists of two statements that the server commits by themselves. In one transaction, a
// client that vanishes between them would leave its locks. The first statement writes an ID that is
// unique to this claim into the rows that it moves, and the second finds them by it: the server has
// no UPDATE that returns rows, and another claim may have moved some of the rows a moment before.
func (l *Ledger) claim(ctx context.Context, rows []driver.DueRow) (messages []driver.Carried, err error) {
	pairs, ids := make([][2]string, len(rows)), make([]uuid.UUID, len(rows))
	for i, row := range rows {
		pairs[i], ids[i] = [2]string{digits(row.ID), row.StageAt.UTC().Format(timeText)}, row.ID
	}
	self := digits(uuid.New())
	err = portable.OnConnection(ctx, l.db, func(conn *sqlx.Conn) error {
		var moved int
		err := l.alone(ctx, conn, func() (err error) {
			moved, err = portable.Changed(conn.ExecContext(ctx, l.statement(claim, inJSON(pairs), driver.StageAgainAfter.Microseconds(), driver.StageAgainWithin.Microseconds(), self)))
			return err
		})
		if err != nil || moved == 0 {
			return err
		}
		return l.alone(ctx, conn, func() error {
			messages = nil
			return conn.SelectContext(ctx, &messages, l.statement(loadClaimed, array(ids), self))
		})
	})
	return messages, err
}

func (l *Ledger) touch(ctx context.Context, ids []uuid.UUID) error {
	return portable.OnConnection(ctx, l.db, func(conn *sqlx.Conn) error {
		return l.alone(ctx, conn, func() error {
			_, err := conn.ExecContext(ctx, l.statement(touchCarried, array(ids), driver.StageAgainAfter.Microseconds(), driver.StageAgainWithin.Microseconds()))
			return err
		})
	})
}
