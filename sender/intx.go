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
// transaction, and fn says how by its error. When fn has returned, Send, Stage and all
// statements fail with an error that wraps sql.ErrTxDone. A *sql.Stmt that was made before
// is not stopped, nor are rows that are still being read; do not use them after fn.
type Tx struct {
	sender *Sender
	tx     *sql.Tx

	mu      sync.Mutex
	over    bool // fn has returned: nothing more is sent
	outbox  []bridge.Message
	staging sync.WaitGroup // calls of Stage
	staged  []*Staged
	failed  error // of the first Stage that failed
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

// Stage records messages at once and begins to publish them, as StageTx does, and returns
// their IDs. So the broker's confirm takes its time while fn goes on; InTx waits for what
// is left of it before it commits. After an error InTx rolls back, whatever fn returns.
// After a rollback to a savepoint that was set before Stage, these messages are dropped, and
// the transaction commits the rest.
//
// It is a statement in the transaction, so it must not be called while rows are being read.
func (tx *Tx) Stage(ctx context.Context, msgs ...bridge.Message) ([]uuid.UUID, error) {
	tx.mu.Lock()
	if tx.over {
		tx.mu.Unlock()
		return nil, fmt.Errorf("stage: nothing sent: %w", errOver)
	}
	tx.staging.Add(1)
	tx.mu.Unlock()
	defer tx.staging.Done()
	staged, err := tx.sender.StageTx(ctx, bridge.SQL(tx.tx), msgs...)
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if err != nil {
		if tx.failed == nil {
			tx.failed = err
		}
		return nil, err
	}
	tx.staged = append(tx.staged, staged)
	return staged.IDs(), nil
}

// end lets nothing else be sent, and returns what Send has collected.
func (tx *Tx) end() []bridge.Message {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.over = true
	return tx.outbox
}

// confirm stages what is left, and waits until all is confirmed, or parked.
func (tx *Tx) confirm(ctx context.Context) error {
	outbox := tx.end()
	tx.staging.Wait() // fn may have left one running
	if tx.failed != nil {
		return tx.failed
	}
	last, err := tx.sender.StageTx(ctx, bridge.SQL(tx.tx), outbox...)
	if err != nil {
		return err
	}
	for _, staged := range append(tx.staged, last) {
		if err := staged.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// InTx begins a transaction, runs fn in it, records and stages what fn sent, waits until
// all that fn sent or staged is confirmed, and commits. If fn returns an error or panics,
// or a staging fails, the transaction is rolled back and nothing is delivered; the errors
// are those of fn and of SendTx. Without messages it is a transaction as any other. opts, which may
// be nil, is for BeginTx.
//
// An error of the COMMIT itself is ErrCommitUnknown, unless the database says that it has
// rolled back and its driver tells the SQLSTATE by a method, as pgx and lib/pq do. If ctx
// ends before the COMMIT is sent, the transaction is rolled back. Should the process die,
// what was not committed is rolled back, and what was is delivered.
//
// What fn sends is staged after fn, so it must not be sent and then undone by a rollback
// to a savepoint; use Stage there.
func (s *Sender) InTx(ctx context.Context, db *sql.DB, opts *sql.TxOptions, fn func(tx *Tx) error) error {
	sqlTx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	// After a commit this does nothing; it also serves a panic in fn.
	defer func() { _ = sqlTx.Rollback() }()
	tx := &Tx{sender: s, tx: sqlTx}
	defer tx.end() // also after a panic in fn
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.confirm(ctx); err != nil { // rule 2
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
