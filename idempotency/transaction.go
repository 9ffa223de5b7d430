package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A Transaction is a transaction that a Guard begins and ends, and the connection under it. It
// joins a Guard to a database library other than database/sql; package pgxreceiver has the one
// of pgx. After Commit or Rollback only Ping and Close are called.
type Transaction interface {
	bridge.Tx

	// Commit commits. If the handler has ended the transaction before, the error wraps
	// sql.ErrTxDone.
	Commit(ctx context.Context) error

	// Rollback rolls back. It is also called after Commit, and then does nothing.
	Rollback()

	// Ping tells whether the connection still answers: if so, a failure is the handler's; if
	// not, the database's, and a commit that failed may have happened.
	Ping(ctx context.Context) error

	// Close returns the connection to its pool.
	Close()
}

// HandleIn is Guard.Handle in a transaction of any library. begin begins one, on a connection of
// its own, on the database that has the inbox's tables. An error of begin counts against no
// message. The purge uses the inbox's DB.
func HandleIn[T Transaction](ctx context.Context, g *Guard, begin func(ctx context.Context) (T, error), d amqp.Delivery, fn func(ctx context.Context, tx T) error) error {
	if begin == nil || fn == nil {
		panic("idempotency: HandleIn needs a transaction and a function")
	}
	return handleIn(ctx, g, g.inbox.DB(), begin, d, fn)
}

func handleIn[T Transaction](ctx context.Context, g *Guard, db *sql.DB, begin func(ctx context.Context) (T, error), d amqp.Delivery, fn func(ctx context.Context, tx T) error) error {
	defer g.purgeSome(ctx, db, d)
	return g.deliver(ctx, d, func(ctx context.Context) (outcome, error) {
		key, err := g.key(d)
		if err != nil {
			return unfinished, err
		}
		return attempt(ctx, g, begin, key, fn)
	})
}

// attempt claims key and runs fn in one transaction.
func attempt[T Transaction](ctx context.Context, g *Guard, begin func(ctx context.Context) (T, error), key string, fn func(ctx context.Context, tx T) error) (outcome, error) {
	return inTransaction(ctx, g, begin, func(ctx context.Context, tx T) (outcome, error) {
		fresh, err := g.claim(ctx, tx, key)
		if err != nil {
			return unfinished, err
		}
		if !fresh {
			return duplicate, nil
		}
		return handled, g.run(key, func() error { return fn(ctx, tx) })
	})
}

// inTransaction runs work in a transaction, which it commits if a message is handled or kept.
//
// The transaction keeps its connection throughout, so that afterwards that very connection can
// be asked whether it still answers.
func inTransaction[T Transaction](ctx context.Context, g *Guard, begin func(ctx context.Context) (T, error), work func(ctx context.Context, tx T) (outcome, error)) (outcome, error) {
	tx, err := begin(ctx)
	if err != nil {
		return unfinished, err
	}
	defer tx.Close()
	defer tx.Rollback() // without effect after a commit
	if err := g.marks.Enter(ctx, tx); err != nil {
		return unfinished, fmt.Errorf("begin transaction: %w", err)
	}

	ended, err := work(ctx, tx)
	if failure := new(handlerError); errors.As(err, &failure) {
		tx.Rollback()
		return unfinished, blame(ctx, tx, failure.err)
	}
	if err != nil || ended != handled && ended != kept {
		return ended, err
	}
	err = g.marks.Leave(ctx, tx)
	switch {
	case errors.Is(err, bridge.ErrTxEnded):
		return unfinished, &handlerError{fmt.Errorf("commit: %w", err)}
	case err != nil:
		return unfinished, fmt.Errorf("commit: %w", err)
	}
	// A handler that has seen the context end is told nothing else by the commit, which may not
	// have seen it yet.
	if err := ctx.Err(); err != nil {
		return unfinished, fmt.Errorf("commit: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		if errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil {
			err = fmt.Errorf("the handler has ended the transaction itself: %w", err)
		}
		return unfinished, blame(ctx, tx, fmt.Errorf("commit: %w", err))
	}
	return ended, nil
}

// blame makes err the handler's if tx's connection still answers, and a lostError otherwise.
func blame(ctx context.Context, tx Transaction, err error) error {
	if tx.Ping(ctx) != nil {
		return &lostError{err}
	}
	return &handlerError{err}
}

// inTx is inTransaction of database/sql.
func (g *Guard) inTx(ctx context.Context, db *sql.DB, work func(ctx context.Context, tx *sql.Tx) (outcome, error)) (outcome, error) {
	return inTransaction(ctx, g, beginOn(db), func(ctx context.Context, tx *sqlTransaction) (outcome, error) { return work(ctx, tx.tx) })
}

// A sqlTransaction is a Transaction of database/sql.
type sqlTransaction struct {
	bridge.Tx
	conn *sql.Conn
	tx   *sql.Tx
}

var _ Transaction = (*sqlTransaction)(nil)

func beginOn(db *sql.DB) func(ctx context.Context) (*sqlTransaction, error) {
	return func(ctx context.Context) (*sqlTransaction, error) {
		t := new(sqlTransaction)
		err := driver.Begin(ctx, db, func() (err error) {
			if t.conn, err = db.Conn(ctx); err != nil {
				return fmt.Errorf("connect to database: %w", err)
			}
			if t.tx, err = t.conn.BeginTx(ctx, nil); err != nil {
				_ = t.conn.Close()
				return fmt.Errorf("begin transaction: %w", err)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		t.Tx = bridge.SQL(t.tx)
		return t, nil
	}
}

func (t *sqlTransaction) Commit(context.Context) error   { return t.tx.Commit() }
func (t *sqlTransaction) Rollback()                      { _ = t.tx.Rollback() }
func (t *sqlTransaction) Ping(ctx context.Context) error { return t.conn.PingContext(ctx) }
func (t *sqlTransaction) Close()                         { _ = t.conn.Close() }
