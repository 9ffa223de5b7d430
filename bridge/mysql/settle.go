package mysql

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// settle reads the row with a shared lock, which waits for the transaction that has inserted it.
// The server frees the lock at the statement's end. innodb_lock_wait_timeout bounds the wait: it is
// in whole seconds, so wait is rounded up, and a deadline of ctx rounded down, to at least a
// second. A shorter max_statement_time or max_execution_time of the session bounds the wait too.
func (l *Ledger) settle(ctx context.Context, id uuid.UUID, wait time.Duration) (outcome driver.Outcome, from driver.Instance, err error) {
	var durable bool
	err = portable.OnConnection(ctx, l.db, func(conn *sqlx.Conn) (err error) {
		outcome, from, durable, err = l.settleOn(ctx, conn, id, portable.Wait(ctx, wait, time.Second))
		return err
	})
	if err == nil && outcome == driver.Committed && !durable {
		err = l.makeDurable(ctx, from)
	}
	return outcome, from, err
}

// settleOn restores the connection's settings, unless it returns an error.
func (l *Ledger) settleOn(ctx context.Context, conn *sqlx.Conn, id uuid.UUID, seconds int64) (outcome driver.Outcome, from driver.Instance, durable bool, err error) {
	var usual int64
	if err := conn.GetContext(ctx, &usual, `SELECT @@SESSION.innodb_lock_wait_timeout`); err != nil {
		return driver.StillOpen, "", false, fmt.Errorf("read innodb_lock_wait_timeout: %w", err)
	}
	if err := setLockWait(ctx, conn, seconds); err != nil {
		return driver.StillOpen, "", false, err
	}
	if outcome, from, durable, err = l.settleLocked(ctx, conn, id); err != nil {
		return driver.StillOpen, "", false, err
	}
	return outcome, from, durable, setLockWait(ctx, conn, usual)
}

func (l *Ledger) settleLocked(ctx context.Context, conn *sqlx.Conn, id uuid.UUID) (outcome driver.Outcome, from driver.Instance, durable bool, err error) {
	var rows []struct {
		ID       uuid.NullUUID
		Logged   bool
		ReadOnly string `db:"read_only"`
		instance
	}
	err = l.alone(ctx, conn, func() error {
		rows = nil
		return conn.SelectContext(ctx, &rows, l.statement(settle, digits(id)))
	})
	switch {
	case waitEnded(err):
		return driver.StillOpen, "", false, nil
	case err != nil:
		return driver.StillOpen, "", false, err
	case len(rows) == 0:
		return driver.StillOpen, "", false, portable.OtherLedger(l.Identity())
	}
	if err := takesWrites(rows[0].ReadOnly); err != nil {
		return driver.StillOpen, "", false, err
	}
	from = l.start.name(rows[0].instance)
	if rows[0].ID.Valid {
		return driver.Committed, from, rows[0].Logged, nil
	}
	return driver.RolledBack, from, true, nil
}

// setLockWait sets the session's bound. MariaDB could set it for one statement; MySQL cannot, and its
// max_execution_time is not documented to end the wait for a lock.
func setLockWait(ctx context.Context, conn *sqlx.Conn, seconds int64) error {
	if _, err := conn.ExecContext(ctx, fmt.Sprintf(`SET SESSION innodb_lock_wait_timeout = %d`, seconds)); err != nil {
		return fmt.Errorf("set innodb_lock_wait_timeout: %w", err)
	}
	return nil
}
