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

// Messages are in the statements as base64. A message as a parameter would be text to the server,
// which converts it if character_set_connection differs from character_set_client (measured on
// MariaDB 10.11: the stored bytes then differ), and the driver would prepare the statement first.
//
// UTC_TIMESTAMP has one value within a statement, so an unpublished row has one time in both
// columns.
const (
	// %[5]s is the message, %[6]d the microseconds from the record to the stage time, and %[7]s the
	// earliest time of the record.
	carryOne = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at)
SELECT UNHEX('%[1]s'), GREATEST(UTC_TIMESTAMP(6), CAST('%[7]s' AS DATETIME(6))), FROM_BASE64('%[5]s'),
	GREATEST(UTC_TIMESTAMP(6), CAST('%[7]s' AS DATETIME(6))) + INTERVAL %[6]d MICROSECOND
FROM bridge_identity i WHERE i.one = 1 AND i.identity = UNHEX('%[2]s')`

	carryMore = `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at) VALUES `
	more      = `(UNHEX('%[1]s'), GREATEST(UTC_TIMESTAMP(6), CAST('%[4]s' AS DATETIME(6))), FROM_BASE64('%[2]s'),
	GREATEST(UTC_TIMESTAMP(6), CAST('%[4]s' AS DATETIME(6))) + INTERVAL %[3]d MICROSECOND)`

	// In a transaction at REPEATABLE READ, a DELETE of a missing row would lock the gap in which
	// senders insert: see cancel.
	seesRow           = `SELECT COUNT(*) FROM ` + ledgerByKey + ` WHERE l.id = UNHEX('%[1]s')`
	insertPlaceholder = `INSERT IGNORE INTO bridge_ledger (id) VALUES (UNHEX('%[1]s'))`
	cancelRow         = `DELETE FROM bridge_ledger WHERE id = UNHEX('%[1]s') AND stage_at <= recorded_at`
	deletePlaceholder = `DELETE FROM bridge_ledger WHERE id = UNHEX('%[1]s')`

	// At least one row if the identity is right, with nulls if no row is due. It begins after the
	// stage time %[5]s and the ID %[6]s, follows the index, which ends with the ID, and ends at the
	// limit.
	due = `SELECT CAST(UTC_TIMESTAMP(6) AS CHAR) AS now, o.id, CAST(o.recorded_at AS CHAR) AS recorded_at, CAST(o.stage_at AS CHAR) AS stage_at, o.bytes
FROM bridge_identity i LEFT JOIN (
	SELECT l.id, l.recorded_at, l.stage_at, OCTET_LENGTH(l.message) AS bytes FROM bridge_ledger l FORCE INDEX (bridge_ledger_stage_at)
	WHERE l.stage_at >= '%[5]s' AND l.stage_at <= UTC_TIMESTAMP(6) AND (l.stage_at > '%[5]s' OR l.id > UNHEX('%[6]s'))
	ORDER BY l.stage_at, l.id LIMIT %[7]d
) o ON 1 = 1 WHERE i.one = 1 AND i.identity = UNHEX('%[2]s') ORDER BY o.stage_at, o.id`

	// The next stage time of a row, with the bounds %[5]d and %[6]d in microseconds. It is after
	// recorded_at even if the clock has gone back: Cancel compares both.
	next = `GREATEST(UTC_TIMESTAMP(6), l.recorded_at) + INTERVAL LEAST(GREATEST(TIMESTAMPDIFF(MICROSECOND, l.recorded_at, UTC_TIMESTAMP(6)), %[5]d), %[6]d) MICROSECOND`

	// %[1]s are pairs of an ID and a stage time, %[7]s is the claim. Of two claims of a row the
	// second finds it locked, or with another stage time. Without the LIMIT MySQL merges the tables
	// of the two SELECTs, and the UPDATE then waits for locked rows (seen on 9.7).
	claim = `UPDATE (
	SELECT l.id, ids.stage_at FROM (
		SELECT UNHEX(j.id) AS id, CAST(j.stage_at AS DATETIME(6)) AS stage_at
		FROM JSON_TABLE('%[1]s', '$[*]' COLUMNS (id CHAR(32) PATH '$[0]', stage_at CHAR(26) PATH '$[1]')) j
	) ids STRAIGHT_JOIN ` + ledgerByKey + ` ON l.id = ids.id WHERE l.stage_at = ids.stage_at LIMIT 18446744073709551615 FOR UPDATE SKIP LOCKED
) free STRAIGHT_JOIN ` + ledgerByKey + ` ON l.id = free.id SET l.stage_at = ` + next + `, l.claimed_by = UNHEX('%[7]s') WHERE l.stage_at = free.stage_at`

	// %[5]s is the claim.
	loadClaimed = `SELECT l.id, l.message FROM ` + ids + ` STRAIGHT_JOIN ` + ledgerByKey + ` ON l.id = ids.id WHERE l.claimed_by = UNHEX('%[5]s')`

	touchCarried = `UPDATE (
	SELECT l.id FROM ` + ids + ` STRAIGHT_JOIN ` + ledgerByKey + ` ON l.id = ids.id WHERE l.stage_at IS NOT NULL LIMIT 18446744073709551615 FOR UPDATE SKIP LOCKED
) free STRAIGHT_JOIN ` + ledgerByKey + ` ON l.id = free.id SET l.stage_at = ` + next
)

// carry inserts the first row only if the identity is right, and the others only if the first was
// inserted. (A SELECT of the identity would begin the snapshot of a transaction at REPEATABLE READ.
// One INSERT of messages in a JSON array took MariaDB 10.11 three times as long.)
func (l *Ledger) carry(ctx context.Context, tx bridge.Tx, stage portable.Stage, messages []driver.Carried) (int64, error) {
	var grace time.Duration
	if stage.Published {
		grace = driver.PublishedGrace
	}
	notBefore := stage.NotBefore.Format(timeText)
	first, others := messages[0], messages[1:]
	n, err := tx.Exec(ctx, l.statement(carryOne, digits(first.ID), inBase64(first), grace.Microseconds(), notBefore))
	if err != nil || n == 0 || len(others) == 0 {
		return n, err
	}
	rows := make([]string, len(others))
	for i, m := range others {
		rows[i] = fmt.Sprintf(more, digits(m.ID), inBase64(m), grace.Microseconds(), notBefore)
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
