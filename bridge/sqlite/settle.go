package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// slice bounds one wait inside SQLite. Drivers differ in whether a cancelled context ends that
// wait, so Settle may notice it this late. It also keeps SQLite's pauses short, which grow from 1
// to 25 ms in that time.
const slice = 100 * time.Millisecond

// settle waits until no other connection writes to the file, then writes, reads the row, and rolls
// back: this leaves no trace in the file. Any writer makes it wait, not only the one that recorded
// the ID. At the end of wait, which may be 100 ms late, the outcome is StillOpen.
func (l *Ledger) settle(ctx context.Context, id uuid.UUID, wait time.Duration) (outcome driver.Outcome, from driver.Instance, err error) {
	err = portable.OnConnection(ctx, l.db, func(conn *sqlx.Conn) (err error) {
		outcome, from, err = l.settleOn(ctx, conn, id, wait)
		return err
	})
	return outcome, from, err
}

// settleOn restores the connection's busy_timeout, unless it returns an error.
func (l *Ledger) settleOn(ctx context.Context, conn *sqlx.Conn, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	wait = time.Duration(portable.Wait(ctx, wait, time.Millisecond)) * time.Millisecond
	deadline := time.Now().Add(wait)
	usual, err := waitFor(ctx, conn, max(1, min(wait, slice).Milliseconds()))
	if err != nil {
		return driver.StillOpen, "", err
	}
	outcome, from, err := l.settleLocked(ctx, conn, id, deadline)
	if err != nil {
		return driver.StillOpen, "", err
	}
	return outcome, from, setBusyTimeout(ctx, conn, usual)
}

func (l *Ledger) settleLocked(ctx context.Context, conn *sqlx.Conn, id uuid.UUID, deadline time.Time) (driver.Outcome, driver.Instance, error) {
	for {
		_, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`)
		if err == nil {
			break
		}
		if !isBusy(err) {
			return driver.StillOpen, "", err
		}
		if time.Now().After(deadline) {
			return driver.StillOpen, "", nil // no transaction was begun
		}
	}
	outcome, from, err := l.settleAlone(ctx, conn, id)
	if err != nil {
		return driver.StillOpen, "", err
	}
	if _, err := conn.ExecContext(ctx, `ROLLBACK`); err != nil {
		return driver.StillOpen, "", fmt.Errorf("roll back: %w", err)
	}
	return outcome, from, nil
}

// settleAlone reads the row after the proof that no other connection writes.
func (l *Ledger) settleAlone(ctx context.Context, conn *sqlx.Conn, id uuid.UUID) (driver.Outcome, driver.Instance, error) {
	if _, err := conn.ExecContext(ctx, settle, uuid.NewString()); err != nil {
		return driver.StillOpen, "", err
	}
	found, from, err := l.lookUp(ctx, conn, []uuid.UUID{id})
	switch {
	case err != nil:
		return driver.StillOpen, "", err
	case len(found) == 0:
		return driver.RolledBack, from, nil
	default:
		return driver.Committed, from, nil
	}
}

// waitFor sets the connection's busy_timeout, and returns the one before.
func waitFor(ctx context.Context, conn *sqlx.Conn, milliseconds int64) (usual int64, err error) {
	if err := conn.GetContext(ctx, &usual, `PRAGMA busy_timeout`); err != nil {
		return 0, fmt.Errorf("read busy_timeout: %w", err)
	}
	return usual, setBusyTimeout(ctx, conn, milliseconds)
}

func setBusyTimeout(ctx context.Context, conn *sqlx.Conn, milliseconds int64) error {
	if _, err := conn.ExecContext(ctx, fmt.Sprintf(`PRAGMA busy_timeout = %d`, milliseconds)); err != nil {
		return fmt.Errorf("set busy_timeout: %w", err)
	}
	return nil
}
