package sender

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// ErrCommitUnknown means that the COMMIT was sent, and its answer is missing or an error. The
// transaction may have committed; then its messages are delivered. Check before you repeat the
// work. bridge.Retryable returns false for it.
var ErrCommitUnknown = bridge.ErrCommitUnknown

// A Tx is a transaction that collects messages. It has the methods of a *sql.Tx that take a
// context, and is a bridge.Tx. It has no Commit and no Rollback: InTx ends the transaction,
// depending on the error of fn. When fn has returned, Send, Stage and all statements fail with an
// error that wraps sql.ErrTxDone. Do not use a *sql.Stmt or rows of the transaction after fn; they
// are not stopped.
type Tx struct {
	tx       *sql.Tx
	messages *TxMessages
}

// ExecContext is ExecContext of *sql.Tx.
func (tx *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return tx.tx.ExecContext(tx.within(ctx), query, args...)
}

// QueryContext is QueryContext of *sql.Tx.
func (tx *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return tx.tx.QueryContext(tx.within(ctx), query, args...)
}

// QueryRowContext is QueryRowContext of *sql.Tx.
func (tx *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return tx.tx.QueryRowContext(tx.within(ctx), query, args...)
}

// PrepareContext is PrepareContext of *sql.Tx.
func (tx *Tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return tx.tx.PrepareContext(tx.within(ctx), query)
}

// StmtContext is StmtContext of *sql.Tx.
func (tx *Tx) StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt {
	return tx.tx.StmtContext(tx.within(ctx), stmt)
}

// Exec and Query make the Tx a bridge.Tx, for other parts of the bridge that work in the
// transaction, such as an idempotency.Claim.
func (tx *Tx) Exec(ctx context.Context, statement string, args ...any) (changed int64, err error) {
	return bridge.SQL(tx.tx).Exec(tx.within(ctx), statement, args...)
}

// Query: see Exec.
func (tx *Tx) Query(ctx context.Context, statement string, args ...any) (bridge.Rows, error) {
	return bridge.SQL(tx.tx).Query(tx.within(ctx), statement, args...)
}

// within returns ctx until fn has returned, and then a context that has ended with errOver: every
// method of a *sql.Tx checks its context first.
func (tx *Tx) within(ctx context.Context) context.Context {
	if tx.messages.Err() != nil {
		return endedContext{ctx}
	}
	return ctx
}

type endedContext struct{ context.Context }

var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (endedContext) Done() <-chan struct{} { return closed }
func (endedContext) Err() error            { return errOver }

// Send adds copies of messages to the transaction and returns their IDs, which it makes. They are
// recorded and staged when fn has returned: first the messages with an order key, then the others,
// in the order in which they were added. If one of them can never be sent, Send adds none and
// returns bridge.ErrInvalidMessage. After an error InTx rolls back, whatever fn returns. After fn
// has returned, Send adds nothing and returns an error that wraps sql.ErrTxDone. Several goroutines
// may call Send.
//
// A rollback to a savepoint does not undo Send: the rows that fn has written since the savepoint
// are gone, but the message is delivered. In a part of fn that may be rolled back by itself, call
// Send after the savepoint is released, or call Stage, which such a rollback undoes.
func (tx *Tx) Send(msgs ...bridge.Message) ([]uuid.UUID, error) { return tx.messages.Send(msgs...) }

// Stage records messages at once and begins to publish them, as StageTx does, and returns their
// IDs. The broker confirms while fn goes on; InTx waits for the confirm before it commits. After an
// error of Stage, InTx rolls back, whatever fn returns. After a rollback to a savepoint that was
// set before Stage, these messages are dropped. The transaction may commit the rest, after the
// broker has confirmed the dropped messages that were not carried.
//
// To keep the order, Stage first records and stages earlier messages of Send that have an order key
// of these messages. So a rollback to such a savepoint drops them too.
//
// Stage executes a statement in the transaction, so it must not be called while rows are being
// read.
func (tx *Tx) Stage(ctx context.Context, msgs ...bridge.Message) ([]uuid.UUID, error) {
	return tx.messages.Stage(ctx, msgs...)
}

// InTx begins a transaction, runs fn in it, records and stages the messages of Send, waits until
// all messages of Send and Stage are confirmed or carried, and commits. The transaction is rolled
// back, and no message is delivered, if fn returns an error or panics, or if a Send or Stage fails
// or panics, even if fn ignores that. The error is then fn's or as from SendTx. Without messages
// InTx runs an ordinary transaction. opts, which may be nil, is for BeginTx. If the pool's
// connection was lost while idle, InTx begins on another one.
//
// An error of the COMMIT itself is ErrCommitUnknown, unless the database says that it has rolled
// back (see CommitError). If ctx ends before the COMMIT is sent, the transaction is rolled back. If
// the process dies, an open transaction is rolled back, and the messages of a committed one are
// delivered.
//
// On MySQL and MariaDB the error is bridge.ErrTxEnded if the server ended the transaction while fn
// ran, by a deadlock whose error fn ignored or by a statement such as CREATE TABLE. SQLite ends it
// if fn ignores the error of a cancelled statement, of a full disk or of ON CONFLICT ROLLBACK. InTx
// then sends no more messages. But statements that fn executed after that are committed, and after
// a CREATE TABLE the statements before it too.
//
// Messages of Send are staged after fn has returned, so a rollback to a savepoint does not undo a
// Send (see Tx.Send).
func (s *Sender) InTx(ctx context.Context, db *sql.DB, opts *sql.TxOptions, fn func(tx *Tx) error) error {
	var sqlTx *sql.Tx
	err := driver.Begin(ctx, db, func() (err error) {
		sqlTx, err = db.BeginTx(ctx, opts)
		return err
	})
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	return s.InBegun(ctx, sqlTx, func(messages *TxMessages) error { return fn(&Tx{tx: sqlTx, messages: messages}) })
}

// InBegun is InTx in a transaction that has just begun. It is for packages that join the sender to
// another library, such as package bunsender. InBegun ends tx. It calls Rollback also after Commit;
// then Rollback must do nothing. InBegun does not stop statements that fn leaves running.
func (s *Sender) InBegun(ctx context.Context, tx bridge.SQLTx, fn func(messages *TxMessages) error) error {
	// After a commit this does nothing. It also runs after a panic in fn.
	defer func() { _ = tx.Rollback() }()
	if err := s.ledger.Enter(ctx, bridge.SQL(tx)); err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	messages := s.TxMessages(ctx, bridge.SQL(tx))
	defer messages.stop() // after a panic in fn too
	if err := fn(messages); err != nil {
		return err
	}
	messages.End()
	// Before Confirm records, because outside of a transaction a Record commits at once.
	if err := s.ledger.Leave(ctx, bridge.SQL(tx)); err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return fmt.Errorf("commit transaction: %w", err)
	}
	if err := messages.Confirm(ctx); err != nil { // rule 2
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("commit transaction: rolled back instead: %w", context.Cause(ctx))
	}
	return CommitError(tx.Commit())
}
