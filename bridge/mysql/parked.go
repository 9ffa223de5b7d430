package mysql

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

const (
	park = `INSERT INTO bridge_parked (id, message) VALUES `

	takeParked = `SELECT id, OCTET_LENGTH(message) AS size FROM bridge_parked FORCE INDEX (PRIMARY) WHERE id > UNHEX('%s') ORDER BY id LIMIT %d FOR UPDATE SKIP LOCKED`

	parkedByKey = `bridge_parked p FORCE INDEX (PRIMARY)`

	loadParked = `SELECT p.id, p.message FROM ` + ids + ` STRAIGHT_JOIN ` + parkedByKey + ` ON p.id = ids.id`

	touch = `UPDATE ` + ids + ` STRAIGHT_JOIN ` + ledgerByKey + ` ON l.id = ids.id SET l.recorded_at = UTC_TIMESTAMP(6)`

	removeParked = `DELETE p FROM ` + ids + ` STRAIGHT_JOIN ` + parkedByKey + ` ON p.id = ids.id`

	countParked = `SELECT COUNT(*) FROM (SELECT 1 FROM bridge_parked LIMIT %d) counted`

	own = `SELECT COUNT(*) FROM bridge_identity WHERE one = 1 AND identity = UNHEX('%[2]s')`
)

func (l *Ledger) park(ctx context.Context, tx bridge.Tx, messages []driver.Parked) (int64, error) {
	if err := l.expectOwn(ctx, tx); err != nil {
		return 0, err
	}
	rows, contents := make([]string, len(messages)), make([]any, len(messages))
	for i, m := range messages {
		rows[i] = "(UNHEX('" + digits(m.ID) + "'), ?)"
		contents[i] = tables.NotNil(m.Message)
	}
	return tx.Exec(ctx, park+strings.Join(rows, ", "), contents...)
}

// expectOwn returns an error unless the identity is in the transaction's database.
func (l *Ledger) expectOwn(ctx context.Context, tx bridge.Tx) error {
	rows, err := tx.Query(ctx, l.statement(own, ""))
	if err != nil {
		return err
	}
	n := 0
	if _, err := tables.ReadRow(rows, &n); err != nil || n > 0 {
		return err
	}
	return tables.OtherLedger(l.Identity())
}

// countParked reads a snapshot, in which messages are that an Unpark has taken.
func (l *Ledger) countParked(ctx context.Context, limit int) (n int, err error) {
	err = readCommitted(ctx, l.db, func(tx *sqlx.Tx) error {
		return tx.GetContext(ctx, &n, fmt.Sprintf(countParked, limit))
	})
	return n, err
}

// A shelf is a tables.Shelf at READ COMMITTED, where each plain SELECT sees what has
// committed before it, and a locking one locks no gaps.
type shelf struct {
	*sqlx.Tx
	conn   *sqlx.Conn
	usual  int64 // the connection's wait_timeout
	ledger *Ledger
}

// openShelf begins what takes rows FOR UPDATE SKIP LOCKED, the oldest IDs first. The server
// ends it when it has heard nothing for idleLimit, as of a client that has vanished.
func (l *Ledger) openShelf(ctx context.Context) (tables.Shelf, error) {
	conn, err := l.db.Connx(ctx)
	if err != nil {
		return nil, err
	}
	usual, err := limitIdle(ctx, conn, idleLimit)
	var tx *sqlx.Tx
	if err == nil {
		tx, err = conn.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	}
	if err != nil {
		discard(conn)
		return nil, err
	}
	return &shelf{tx, conn, usual, l}, nil
}

// Rollback ends the shelf, also after a Commit.
func (s *shelf) Rollback() error {
	err := s.Tx.Rollback()
	ctx, cancel := context.WithTimeout(context.Background(), restoreLimit)
	defer cancel()
	if err != nil && !errors.Is(err, sql.ErrTxDone) || setWaitTimeout(ctx, s.conn, s.usual) != nil {
		discard(s.conn)
		return err
	}
	return s.conn.Close()
}

// restoreLimit bounds how long it may take to give a connection its setting back.
const restoreLimit = 5 * time.Second

// discard closes a connection for good.
func discard(conn *sqlx.Conn) {
	_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	_ = conn.Close()
}

func (s *shelf) Take(ctx context.Context, after uuid.UUID, limit int) (taken []tables.Size, err error) {
	err = s.SelectContext(ctx, &taken, fmt.Sprintf(takeParked, digits(after), limit))
	return taken, err
}

// Recorded reads a snapshot that is younger than the locks of the taken rows: with
// these their rows in the ledger were committed.
func (s *shelf) Recorded(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	found, _, _, err := s.ledger.find(ctx, s.Tx, s.ledger.statement(committed, array(ids)))
	return found, err
}

func (s *shelf) Load(ctx context.Context, ids []uuid.UUID) (messages []driver.Parked, err error) {
	err = s.SelectContext(ctx, &messages, s.ledger.statement(loadParked, array(ids)))
	return messages, err
}

func (s *shelf) Touch(ctx context.Context, ids []uuid.UUID) (free []uuid.UUID, err error) {
	err = s.SelectContext(ctx, &free, s.ledger.statement(lockFree, array(ids)))
	if err != nil || len(free) == 0 {
		return nil, err
	}
	_, err = s.ExecContext(ctx, s.ledger.statement(touch, array(free)))
	return free, err
}

func (s *shelf) Remove(ctx context.Context, ids []uuid.UUID) (int, error) {
	return tables.Changed(s.ExecContext(ctx, s.ledger.statement(removeParked, array(ids))))
}
