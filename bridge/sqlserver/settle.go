package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// settle reads the row of id, and waits for a transaction that has it locked. LOCK_TIMEOUT bounds
// the wait, in whole milliseconds, and so does a deadline of ctx; both leave the connection usable.
func (l *Ledger) settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	milliseconds := portable.Wait(ctx, wait, time.Millisecond) // never 0, which would not wait
	outcome, from := driver.StillOpen, driver.Instance("")
	err := try(ctx, func(ctx context.Context) (err error) {
		if l.byInsert.Load() == nil {
			outcome, from, err = l.settleBySelect(ctx, l.db, id, milliseconds)
			return err
		}
		conn, err := l.db.Connx(ctx)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		defer func() { _ = conn.Close() }()
		outcome, from, err = l.settleByInsert(ctx, conn, id, milliseconds)
		return err
	})
	if mssql.Number(err) == mssql.LockTimeout {
		return driver.StillOpen, "", nil
	}
	return outcome, from, err
}

// settleOn is one attempt of settle, on this connection.
func (l *Ledger) settleOn(ctx context.Context, conn *sqlx.Conn, id uuid.UUID, milliseconds int64) (driver.Outcome, driver.Instance, error) {
	if l.byInsert.Load() != nil {
		return l.settleByInsert(ctx, conn, id, milliseconds)
	}
	return l.settleBySelect(ctx, conn, id, milliseconds)
}

func (l *Ledger) settleBySelect(ctx context.Context, q sqlx.QueryerContext, id uuid.UUID, milliseconds int64) (driver.Outcome, driver.Instance, error) {
	var rows []struct {
		Own, Found    int
		Updateability sql.NullString
		Instance      string
	}
	text := fmt.Sprintf(waitAtMost, milliseconds) + l.schema.In(l.lookups.settle)
	if err := sqlx.SelectContext(ctx, q, &rows, text, argument(id), argument(l.Identity())); err != nil {
		return driver.StillOpen, "", err
	}
	switch {
	case len(rows) != 1:
		return driver.StillOpen, "", fmt.Errorf("%d rows, must be 1", len(rows))
	case rows[0].Updateability.String != readWrite:
		return driver.StillOpen, "", fmt.Errorf("%w: the database is %q", bridge.ErrNotPrimary, rows[0].Updateability.String)
	case rows[0].Own != 1:
		return driver.StillOpen, "", portable.OtherLedger(l.Identity())
	case rows[0].Found > 0:
		return driver.Committed, driver.Instance(rows[0].Instance), nil
	default:
		return driver.RolledBack, driver.Instance(rows[0].Instance), nil
	}
}

// settleByInsert inserts the ID in a transaction of its own, and rolls back. The transaction does
// not use ctx: under an ended context the driver returns the connection before it has read the
// answer to the rollback.
func (l *Ledger) settleByInsert(ctx context.Context, conn *sqlx.Conn, id uuid.UUID, milliseconds int64) (driver.Outcome, driver.Instance, error) {
	tx, err := conn.BeginTxx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return driver.StillOpen, "", fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	from, err := nameInstance(ctx, bridge.SQL(tx)) // first, since a duplicate key returns only an error
	if err != nil {
		return driver.StillOpen, "", err
	}
	result, err := tx.ExecContext(ctx, fmt.Sprintf(waitAtMost, milliseconds)+l.schema.In(settleByInsert), argument(id), argument(l.Identity()))
	if isDuplicate(err) {
		return driver.Committed, from, nil
	}
	if err != nil {
		return driver.StillOpen, "", err
	}
	inserted, err := portable.Changed(result, nil)
	if err != nil {
		return driver.StillOpen, "", err
	}
	if inserted != 1 {
		return driver.StillOpen, "", portable.OtherLedger(l.Identity())
	}
	return driver.RolledBack, from, nil
}

func nameInstance(ctx context.Context, tx bridge.Tx) (driver.Instance, error) {
	var name string
	err := portable.QueryRow(ctx, tx, nameServer, nil, &name)
	return driver.Instance(name), err
}

// FallBack makes Settle wait by an INSERT of the same ID instead of a SELECT, for good.
// proof.Prove calls it if the SELECT fails the proof. It returns false if Settle already did so.
func (l *Ledger) FallBack(reason error) bool {
	return l.byInsert.CompareAndSwap(nil, &reason)
}

// FellBack returns why Settle waits by an INSERT, or nil if it waits by a SELECT.
func (l *Ledger) FellBack() error {
	if reason := l.byInsert.Load(); reason != nil {
		return *reason
	}
	return nil
}
