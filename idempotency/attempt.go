package idempotency

import (
	"context"
	"database/sql"
	"fmt"
	"github.com/twoqueue/twoqueue/bridge"
	"runtime/debug"
)

// A handlerError is a failed attempt that counts. Every other error of an
// attempt is the database's.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// A lostError is that of an attempt whose connection was dead after the handler had run.
type lostError struct{ err error }

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// attempt claims key and runs fn in one transaction.
func (g *Guard) attempt(ctx context.Context, db *sql.DB, key string, fn func(context.Context, *sql.Tx) error) (outcome, error) {
	return g.inTx(ctx, db, func(ctx context.Context, tx *sql.Tx) (outcome, error) {
		fresh, err := g.claim(ctx, bridge.SQL(tx), key)
		if err != nil {
			return unfinished, err
		}
		if !fresh {
			return duplicate, nil
		}
		return handled, g.run(key, func() error { return fn(ctx, tx) })
	})
}

// blame makes err the handler's if conn still answers, and a lostError otherwise.
func blame(ctx context.Context, conn *sql.Conn, err error) error {
	if conn.PingContext(ctx) != nil {
		return &lostError{err}
	}
	return &handlerError{err}
}

// contain runs f and turns a panic into an error, with its stack in the log.
func (g *Guard) contain(what, key string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
			g.log.Error(what+" panicked", "message_id", key, "error", err, "stack", string(debug.Stack()))
		}
	}()
	return f()
}
