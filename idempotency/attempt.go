package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime/debug"
)

// A handlerError is a failed attempt that counts. Every other error of an
// attempt is the database's.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// attempt claims key and runs fn in one transaction. It returns true if that
// committed, and false without an error if the key had been claimed before.
//
// It holds one connection throughout, so that afterwards it can ask that very
// connection whether it still answers: on a live one a failure is the handler's,
// on a dead one the database's, and a commit that failed may have happened.
func (g *Guard) attempt(ctx context.Context, db *sql.DB, key string, fn func(context.Context, *sql.Tx) error) (bool, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return false, fmt.Errorf("connect to database: %w", err)
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return false, fmt.Errorf("begin transaction: %w", err)
	}
	defer tx.Rollback() // without effect after a commit

	fresh, err := g.inbox.Claim(ctx, tx, g.consumer, key)
	if err != nil {
		return false, err
	}
	if !fresh {
		return false, nil
	}
	if err := g.contain("handler", key, func() error { return fn(ctx, tx) }); err != nil {
		_ = tx.Rollback() // the ping below tells what matters
		return false, blame(ctx, conn, fmt.Errorf("run handler: %w", err))
	}
	if err := tx.Commit(); err != nil {
		if errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil {
			err = fmt.Errorf("the handler has ended the transaction itself: %w", err)
		}
		return false, blame(ctx, conn, fmt.Errorf("commit: %w", err))
	}
	return true, nil
}

// blame makes err the handler's if conn still answers.
func blame(ctx context.Context, conn *sql.Conn, err error) error {
	if conn.PingContext(ctx) != nil {
		return err
	}
	return &handlerError{err}
}

// contain runs f and turns a panic into an error, with its stack in the log.
func (g *Guard) contain(what, key string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
			g.log.Error(what+" panicked", "message_id", key, "err", err, "stack", string(debug.Stack()))
		}
	}()
	return f()
}
