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
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// bound begins the statements that wait. LOCK_TIMEOUT takes no parameter, but a
// verifier's wait is always the same, and so is the text.
const bound = "SET LOCK_TIMEOUT %d;\n"

// settleByInsert is the other way to wait.
const settleByInsert = `SET NOCOUNT OFF;
INSERT INTO bridge_ledger (id)
SELECT CAST(@p1 AS uniqueidentifier) FROM bridge_identity WHERE [identity] = CAST(@p2 AS uniqueidentifier)`

// Settle reads the row of id, and waits for whoever has it locked. LOCK_TIMEOUT
// bounds the wait, in whole milliseconds, and so does a deadline of ctx; both leave
// the connection usable.
func (l *Ledger) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, error) {
	milliseconds := tables.Wait(ctx, wait, time.Millisecond) // never 0, which would not wait
	outcome := driver.StillOpen
	err := mssql.Try(ctx, func(ctx context.Context) (err error) {
		if l.byInsert.Load() != nil {
			outcome, err = l.settleByInsert(ctx, id, milliseconds, tables.Unwatched)
		} else {
			outcome, err = l.settleBySelect(ctx, l.db, id, milliseconds)
		}
		return err
	})
	return settled(id, outcome, err)
}

// settleWatched is Settle on a connection that began knows.
func (l *Ledger) settleWatched(ctx context.Context, id uuid.UUID, wait time.Duration, began func(sqlx.QueryerContext) error) (driver.Outcome, error) {
	milliseconds := tables.Wait(ctx, wait, time.Millisecond)
	outcome := driver.StillOpen
	err := mssql.Try(ctx, func(ctx context.Context) (err error) {
		if l.byInsert.Load() != nil {
			outcome, err = l.settleByInsert(ctx, id, milliseconds, began)
			return err
		}
		conn, err := l.db.Connx(ctx)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		defer func() { _ = conn.Close() }()
		if err = began(conn); err == nil {
			outcome, err = l.settleBySelect(ctx, conn, id, milliseconds)
		}
		return err
	})
	return settled(id, outcome, err)
}

// settled is what a settle returns.
func settled(id uuid.UUID, outcome driver.Outcome, err error) (driver.Outcome, error) {
	switch {
	case mssql.Number(err) == mssql.LockTimeout:
		return driver.StillOpen, nil
	case err != nil:
		return driver.StillOpen, fmt.Errorf("settle %s: %w", id, err)
	default:
		return outcome, nil
	}
}

func (l *Ledger) settleBySelect(ctx context.Context, q sqlx.QueryerContext, id uuid.UUID, milliseconds int64) (driver.Outcome, error) {
	var rows []struct {
		Own, Found    int
		Updateability sql.NullString
	}
	text := fmt.Sprintf(bound, milliseconds) + l.settle
	if err := sqlx.SelectContext(ctx, q, &rows, text, argument(id), argument(l.identity)); err != nil {
		return driver.StillOpen, classify(err, l.rights)
	}
	switch {
	case len(rows) != 1:
		return driver.StillOpen, fmt.Errorf("%d rows, must be 1", len(rows))
	case rows[0].Updateability.String != mssql.ReadWrite:
		return driver.StillOpen, fmt.Errorf("%w: it is %q", bridge.ErrNotPrimary, rows[0].Updateability.String)
	case rows[0].Own != 1:
		return driver.StillOpen, fmt.Errorf("%w: not %s", bridge.ErrOtherLedger, l.identity)
	case rows[0].Found > 0:
		return driver.Committed, nil
	default:
		return driver.RolledBack, nil
	}
}

// settleByInsert inserts the ID in a transaction of its own, and rolls back. The
// transaction is not ctx's: under a context that has ended the driver gives the
// connection back before it has read the answer to the rollback.
func (l *Ledger) settleByInsert(ctx context.Context, id uuid.UUID, milliseconds int64, began func(sqlx.QueryerContext) error) (driver.Outcome, error) {
	conn, err := l.db.Connx(ctx)
	if err != nil {
		return driver.StillOpen, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := began(conn); err != nil {
		return driver.StillOpen, err
	}
	tx, err := conn.BeginTxx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return driver.StillOpen, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	result, err := tx.ExecContext(ctx, fmt.Sprintf(bound, milliseconds)+settleByInsert, argument(id), argument(l.identity))
	if isDuplicate(err) {
		return driver.Committed, nil
	}
	if err != nil {
		return driver.StillOpen, classify(err, recordRights)
	}
	inserted, err := result.RowsAffected()
	if err != nil {
		return driver.StillOpen, err
	}
	if inserted != 1 {
		return driver.StillOpen, fmt.Errorf("%w: not %s", bridge.ErrOtherLedger, l.identity)
	}
	return driver.RolledBack, nil
}

// FallBack makes Settle wait by an INSERT of the same ID instead of a SELECT, from
// now on and for good. driver.Prove calls it where the SELECT fails the proof. It
// returns false if it was so before.
func (l *Ledger) FallBack(reason error) bool {
	return l.byInsert.CompareAndSwap(nil, &reason)
}

// FellBack returns the reason for which Settle waits by an INSERT, or nil if it waits by
// a SELECT.
func (l *Ledger) FellBack() error {
	if reason := l.byInsert.Load(); reason != nil {
		return *reason
	}
	return nil
}
