package sender

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

// ErrCommitUnknown: the COMMIT was sent and its answer is missing or an error.
// The transaction may have committed, and then its messages are delivered. Do
// not repeat the work without looking. bridge.Retryable says false of it.
var ErrCommitUnknown = errors.New("unknown whether the transaction committed")

// A Tx is a transaction that collects messages. It has the statements of a *sql.Tx that
// take a context, and is a bridge.Tx. It has no Commit and no Rollback: InTx ends the
// transaction, and fn says how by its error. When fn has returned, Send and all statements
// fail with an error that wraps sql.ErrTxDone. A *sql.Stmt that was made before is not
// stopped, nor are rows that are still being read; do not use them after fn.
type Tx struct {
	tx *sql.Tx

	mu     sync.Mutex
	over   bool // fn has returned: nothing more is sent
	outbox []bridge.Message
}

// ExecContext is that of *sql.Tx.
func (tx *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return tx.tx.ExecContext(tx.within(ctx), query, args...)
}

// QueryContext is that of *sql.Tx.
func (tx *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return tx.tx.QueryContext(tx.within(ctx), query, args...)
}

// QueryRowContext is that of *sql.Tx.
func (tx *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return tx.tx.QueryRowContext(tx.within(ctx), query, args...)
}

// PrepareContext is that of *sql.Tx.
func (tx *Tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return tx.tx.PrepareContext(tx.within(ctx), query)
}

// StmtContext is that of *sql.Tx.
func (tx *Tx) StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt {
	return tx.tx.StmtContext(tx.within(ctx), stmt)
}

// Exec makes the Tx a bridge.Tx, for whatever of the bridge works in it beside the sender,
// as an idempotency.Claim does.
func (tx *Tx) Exec(ctx context.Context, statement string, args ...any) (changed int64, err error) {
	return bridge.SQL(tx.tx).Exec(tx.within(ctx), statement, args...)
}

// Query does so too.
func (tx *Tx) Query(ctx context.Context, statement string, args ...any) (bridge.Rows, error) {
	return bridge.SQL(tx.tx).Query(tx.within(ctx), statement, args...)
}

// within is ctx until fn has returned, and then one that has ended with errOver: every
// method of a *sql.Tx asks its context before it does anything.
func (tx *Tx) within(ctx context.Context) context.Context {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.over {
		return ended{ctx}
	}
	return ctx
}

// errOver: fn has returned.
var errOver = fmt.Errorf("the function given to InTx has returned: %w", sql.ErrTxDone)

type ended struct{ context.Context }

var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (ended) Done() <-chan struct{} { return closed }
func (ended) Err() error            { return errOver }

// Send adds messages to the transaction and returns their IDs, which are made here. They
// are recorded and staged when fn has returned, in the order in which they were added:
// InTx returns what is wrong with one of them. Once fn has returned, Send adds nothing
// and returns sql.ErrTxDone. It may be called from several goroutines.
func (tx *Tx) Send(msgs ...bridge.Message) ([]uuid.UUID, error) {
	ids := make([]uuid.UUID, len(msgs))
	msgs = slices.Clone(msgs)
	for i := range msgs {
		if msgs[i].ID == uuid.Nil {
			id, err := uuid.NewV7()
			if err != nil {
				return nil, fmt.Errorf("make message ID: %w", err)
			}
			msgs[i].ID = id
		}
		ids[i] = msgs[i].ID
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.over {
		return nil, fmt.Errorf("send: nothing sent: %w", errOver)
	}
	tx.outbox = append(tx.outbox, msgs...)
	return ids, nil
}

// end lets nothing else be sent, and returns what was.
func (tx *Tx) end() []bridge.Message {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.over = true
	return tx.outbox
}

// InTx begins a transaction, runs fn in it, records and stages what fn sent, and
// commits. If fn returns an error or panics, or the staging fails, the
// transaction is rolled back and nothing is delivered; the errors are those of
// fn and of SendTx. Without messages it is a transaction as any other. opts, which may
// be nil, is for BeginTx.
//
// An error of the COMMIT itself is ErrCommitUnknown, unless the database says that it has
// rolled back and its driver tells the SQLSTATE by a method, as pgx and lib/pq do. If ctx
// ends before the COMMIT is sent, the transaction is rolled back. Should the process die,
// what was not committed is rolled back, and what was is delivered.
//
// Messages are staged after fn, so a message must not be sent and then undone by
// a rollback to a savepoint; use SendTx there.
func (s *Sender) InTx(ctx context.Context, db *sql.DB, opts *sql.TxOptions, fn func(tx *Tx) error) error {
	sqlTx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	// After a commit this does nothing; it also serves a panic in fn.
	defer func() { _ = sqlTx.Rollback() }()
	tx := &Tx{tx: sqlTx}
	defer tx.end() // also after a panic in fn
	if err := fn(tx); err != nil {
		return err
	}
	if _, err := s.SendTx(ctx, bridge.SQL(sqlTx), tx.end()...); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("commit transaction: rolled back instead: %w", context.Cause(ctx))
	}
	err = sqlTx.Commit()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("commit transaction: not sent, it has ended before: %w", err)
	case refused(err):
		return fmt.Errorf("commit transaction: rolled back: %w", err)
	}
	return fmt.Errorf("commit transaction: %w: %w", ErrCommitUnknown, err)
}

// refused tells whether the server itself has answered the COMMIT with a
// rollback: by the SQL standard's classes 23 (a deferred constraint) and 40
// (serialization failure, deadlock), except 40003, 'completion unknown'.
func refused(err error) bool {
	var answer interface{ SQLState() string }
	if !errors.As(err, &answer) {
		return false
	}
	state := answer.SQLState()
	return state != "40003" && (strings.HasPrefix(state, "23") || strings.HasPrefix(state, "40"))
}
