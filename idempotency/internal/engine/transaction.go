package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A Transaction is an idempotency.Transaction.
type Transaction interface {
	bridge.Tx
	Commit(ctx context.Context) error
	Rollback()
	Ping(ctx context.Context) error
	Close()
}

// InTransaction runs work in a transaction, which it commits if a message is handled or kept.
//
// The transaction keeps its connection throughout, so that afterwards a ping shows whether this
// connection still answers.
func InTransaction[T Transaction](ctx context.Context, e *Engine, begin func(ctx context.Context) (T, error), work func(ctx context.Context, tx T) (Outcome, error)) (Outcome, error) {
	ended, err := inTransaction(ctx, e, begin, work)
	if err == nil {
		return ended, nil
	}
	if lost := new(lostError); errors.As(err, &lost) {
		lost.answered = Answers(ctx, atOnce, begin)
	}
	return ended, err
}

// atOnce is how soon a database answers that was not away.
const atOnce = time.Second

// Answers reports whether the database answers within a time, on a connection of begin.
func Answers[T Transaction](ctx context.Context, within time.Duration, begin func(ctx context.Context) (T, error)) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tx, err := begin(ctx)
	if err != nil {
		return false
	}
	defer tx.Close()
	defer tx.Rollback()
	return tx.Ping(ctx) == nil
}

func inTransaction[T Transaction](ctx context.Context, e *Engine, begin func(ctx context.Context) (T, error), work func(ctx context.Context, tx T) (Outcome, error)) (Outcome, error) {
	tx, err := begin(ctx)
	if err != nil {
		return Unfinished, err
	}
	defer tx.Close()
	defer tx.Rollback() // no effect after a commit
	if err := e.txs.Enter(ctx, tx); err != nil {
		return Unfinished, fmt.Errorf("begin transaction: %w", err)
	}

	ended, err := work(ctx, tx)
	if failure, failed := errors.AsType[*handlerError](err); failed {
		tx.Rollback()
		return Unfinished, blame(ctx, tx, failure.err, false)
	}
	if err != nil || ended != Handled && ended != Kept {
		return ended, err
	}
	err = e.txs.Leave(ctx, tx)
	switch {
	case errors.Is(err, bridge.ErrTxEnded):
		return Unfinished, Failure(fmt.Errorf("commit: %w", err))
	case errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil:
		return Unfinished, blame(ctx, tx, endedByHandler(err), true)
	case err != nil:
		return Unfinished, fmt.Errorf("commit: %w", err)
	}
	// If the handler has seen the context end, the commit must fail too, although it may not have seen
	// the end yet.
	if err := ctx.Err(); err != nil {
		return Unfinished, fmt.Errorf("commit: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		if errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil {
			return Unfinished, blame(ctx, tx, endedByHandler(err), true)
		}
		return Unfinished, blame(ctx, tx, fmt.Errorf("commit: %w", err), true)
	}
	return ended, nil
}

func endedByHandler(err error) error {
	return fmt.Errorf("commit: the handler ended the transaction itself: %w", err)
}

// blame marks err as the handler's if tx's connection still answers, and as a lostError otherwise.
func blame(ctx context.Context, tx Transaction, err error, commit bool) error {
	if tx.Ping(ctx) != nil {
		return &lostError{err: err, commit: commit}
	}
	return Failure(err)
}

// InTx is InTransaction with database/sql and Options.TxOptions.
func (e *Engine) InTx(ctx context.Context, db *sql.DB, work func(ctx context.Context, tx *sql.Tx) (Outcome, error)) (Outcome, error) {
	return InTransaction(ctx, e, BeginOn(db, e.Opts.TxOptions), func(ctx context.Context, tx *SQLTransaction) (Outcome, error) { return work(ctx, tx.SQL) })
}

// A SQLTransaction is a Transaction of database/sql.
type SQLTransaction struct {
	bridge.Tx
	SQL  *sql.Tx
	conn *sql.Conn
}

var _ Transaction = (*SQLTransaction)(nil)

// BeginOn returns a function that begins transactions on db.
func BeginOn(db *sql.DB, opts *sql.TxOptions) func(ctx context.Context) (*SQLTransaction, error) {
	return func(ctx context.Context) (*SQLTransaction, error) {
		t := new(SQLTransaction)
		err := driver.Begin(ctx, db, func() (err error) {
			if t.conn, err = db.Conn(ctx); err != nil {
				return fmt.Errorf("connect to database: %w", err)
			}
			if t.SQL, err = t.conn.BeginTx(ctx, opts); err != nil {
				_ = t.conn.Close()
				return fmt.Errorf("begin transaction: %w", err)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		t.Tx = bridge.SQL(t.SQL)
		return t, nil
	}
}

func (t *SQLTransaction) Commit(context.Context) error   { return t.SQL.Commit() }
func (t *SQLTransaction) Rollback()                      { _ = t.SQL.Rollback() }
func (t *SQLTransaction) Ping(ctx context.Context) error { return t.conn.PingContext(ctx) }
func (t *SQLTransaction) Close()                         { _ = t.conn.Close() }

// InOwnTx runs fn in a transaction that is no attempt at a message.
func InOwnTx(ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx bridge.Tx) error) error {
	var tx *sql.Tx
	err := driver.Begin(ctx, db, func() (err error) {
		tx, err = db.BeginTx(ctx, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer tx.Rollback() // no effect after a commit
	if err := fn(ctx, bridge.SQL(tx)); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}
