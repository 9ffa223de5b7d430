package idempotency

import (
	"context"
	"database/sql"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// A Transaction is a transaction that a Deduplicator begins and ends, with its connection. It connects
// a Deduplicator to a database library other than database/sql; package pgxreceiver has one for pgx.
// After Commit or Rollback only Rollback, Ping and Close are called.
type Transaction interface {
	bridge.Tx

	// Commit commits. If the handler has ended the transaction before, the error wraps
	// sql.ErrTxDone.
	Commit(ctx context.Context) error

	// Rollback rolls back. It is also called after Commit, and a second time, and then must do
	// nothing.
	Rollback()

	// Ping reports whether the connection still answers: if so, a failure is the handler's; if not,
	// the database's, and a commit that failed may have happened.
	Ping(ctx context.Context) error

	// Close returns the connection to its pool.
	Close()
}

// handleIn is HandleIn. The purge uses db.
func handleIn[T engine.Transaction](ctx context.Context, keys *engine.Keys, db *sql.DB, begin func(ctx context.Context) (T, error), d amqp.Delivery, fn func(ctx context.Context, tx T) error) error {
	defer keys.PurgeSome(ctx, db, d)
	return keys.Deliver(ctx, d, func(ctx context.Context) (engine.Outcome, error) {
		key, err := keys.Key(d)
		if err != nil {
			return engine.Unfinished, err
		}
		return attempt(ctx, keys, begin, key, fn)
	})
}

// attempt claims key and runs fn in one transaction.
func attempt[T engine.Transaction](ctx context.Context, keys *engine.Keys, begin func(ctx context.Context) (T, error), key string, fn func(ctx context.Context, tx T) error) (engine.Outcome, error) {
	return engine.InTransaction(ctx, keys.Engine, begin, func(ctx context.Context, tx T) (engine.Outcome, error) {
		fresh, err := keys.Claim(ctx, tx, key)
		if err != nil {
			return engine.Unfinished, err
		}
		if !fresh {
			return engine.Duplicate, nil
		}
		return engine.Handled, keys.Run(key, func() error { return fn(ctx, tx) })
	})
}
