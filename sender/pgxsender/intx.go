package pgxsender

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/sender"
)

// A Tx is a transaction of pgx that collects messages. Its method BridgeTx returns it as a
// bridge.Tx. It has no Commit and no Rollback: InTx ends the transaction, depending on the error of
// fn. When fn has returned, Send, Stage and all statements fail with an error that wraps
// sql.ErrTxDone. Do not read rows any further then. Like pgx's transactions it is for one goroutine
// at a time.
type Tx struct {
	conn     *pgxpool.Conn
	options  pgx.TxOptions
	tx       pgx.Tx // nil until it has begun
	messages *sender.TxMessages
}

// InTx is sender.InTx on a pool of pgx: it begins a transaction, runs fn in it, records and stages
// the messages of Send, waits until all messages of Send and Stage are confirmed or carried, and
// commits. The transaction is rolled back, and no message is delivered, if fn returns an error or
// panics, or if a Send or Stage fails or panics, even if fn ignores that. The error is then fn's or
// as from sender.SendTx. An error of the COMMIT itself is sender.ErrCommitUnknown, unless the
// server says that it has rolled back.
//
// If the first statement is a SendBatch, or an Exec with arguments, the BEGIN travels with it and
// costs no round trip. Send and Stage are as in sender.Tx.
func InTx(ctx context.Context, s *sender.Sender, pool *pgxpool.Pool, options pgx.TxOptions, fn func(tx *Tx) error) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer conn.Release() // closes a connection that is still in a transaction
	tx := &Tx{conn: conn, options: options}
	tx.messages = s.TxMessages(ctx, uncheckedTx{tx})
	defer tx.rollback(ctx)
	defer tx.messages.End() // after a panic in fn too, and before the connection is released
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.messages.Confirm(ctx); err != nil { // rule 2 of package bridge
		return err
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("commit transaction: rolled back instead: %w", context.Cause(ctx))
	case tx.tx == nil:
		return nil // no statement was executed
	}
	err = tx.tx.Commit(ctx)
	if errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrTxClosed) { // it had failed before, or was not open
		return fmt.Errorf("commit transaction: rolled back: %w", err)
	}
	return sender.CommitError(err)
}

// rollbackLimit bounds a ROLLBACK that the server does not answer.
const rollbackLimit = 5 * time.Second

// rollback does nothing after a commit.
func (t *Tx) rollback(ctx context.Context) {
	if t.tx != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackLimit)
		defer cancel()
		_ = t.tx.Rollback(ctx) // if that fails, pgx closes the connection
	}
}

// begin begins the transaction, if it has not begun.
func (t *Tx) begin(ctx context.Context) error {
	if err := t.messages.Err(); err != nil {
		return err
	}
	return t.started(ctx)
}

func (t *Tx) started(ctx context.Context) (err error) {
	if t.tx == nil {
		t.tx, err = t.conn.BeginTx(ctx, t.options)
	}
	return err
}

// Exec is Exec of pgx.Tx.
func (t *Tx) Exec(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error) {
	if err := t.messages.Err(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.exec(ctx, statement, args...)
}

func (t *Tx) exec(ctx context.Context, statement string, args ...any) (tag pgconn.CommandTag, err error) {
	if t.tx == nil && !batches(args) {
		if err := t.started(ctx); err != nil {
			return tag, err
		}
	}
	if t.tx != nil {
		return t.tx.Exec(ctx, statement, args...)
	}
	batch := new(pgx.Batch)
	batch.Queue(statement, args...).Exec(func(done pgconn.CommandTag) error {
		tag = done
		return nil
	})
	return tag, t.sendBatch(ctx, batch)
}

// batches reports whether a statement with these arguments means the same in a batch. Without
// arguments it may be several statements, and a batch accepts no options of pgx.
func batches(args []any) bool {
	if len(args) == 0 {
		return false
	}
	switch args[0].(type) {
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return false
	}
	return true
}

// SendBatch sends a batch, reads all its results and returns the first error. To see the results,
// set callbacks (pgx.QueuedQuery). The batch must not begin a transaction itself
// (pgx.Batch.BeginTx).
func (t *Tx) SendBatch(ctx context.Context, batch *pgx.Batch) error {
	if err := t.messages.Err(); err != nil {
		return err
	}
	return t.sendBatch(ctx, batch)
}

// sendBatch sends the BEGIN together with the first batch.
func (t *Tx) sendBatch(ctx context.Context, batch *pgx.Batch) error {
	if t.tx != nil {
		return t.tx.SendBatch(ctx, batch).Close()
	}
	first := new(pgx.Batch)
	first.BeginTx(t.options)
	first.QueuedQueries = append(first.QueuedQueries, batch.QueuedQueries...)
	results := t.conn.SendBatch(ctx, first)
	t.tx = results.Tx()
	return results.Close()
}

// Query is Query of pgx.Tx.
func (t *Tx) Query(ctx context.Context, statement string, args ...any) (pgx.Rows, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return t.tx.Query(ctx, statement, args...)
}

// QueryRow is QueryRow of pgx.Tx.
func (t *Tx) QueryRow(ctx context.Context, statement string, args ...any) pgx.Row {
	if err := t.begin(ctx); err != nil {
		return failedRow{err}
	}
	return t.tx.QueryRow(ctx, statement, args...)
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

// CopyFrom is CopyFrom of pgx.Tx.
func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.begin(ctx); err != nil {
		return 0, err
	}
	return t.tx.CopyFrom(ctx, table, columns, rows)
}

// Send is Send of sender.Tx: it copies the messages now; they are recorded and staged when fn has
// returned. A rollback to a savepoint does not undo Send, but it undoes Stage.
func (t *Tx) Send(messages ...bridge.Message) ([]uuid.UUID, error) {
	return t.messages.Send(messages...)
}

// Stage is Stage of sender.Tx: the messages are recorded and published now, and InTx waits for the
// confirm before it commits.
func (t *Tx) Stage(ctx context.Context, messages ...bridge.Message) ([]uuid.UUID, error) {
	return t.messages.Stage(ctx, messages...)
}

// BridgeTx returns the transaction for other parts of the bridge that work in it, such as an
// idempotency.Claim.
func (t *Tx) BridgeTx() bridge.Tx { return checkedTx{uncheckedTx{t}} }

// checkedTx executes statements until fn has returned.
type checkedTx struct{ uncheckedTx }

func (c checkedTx) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	if err := c.t.messages.Err(); err != nil {
		return 0, err
	}
	return c.uncheckedTx.Exec(ctx, statement, args...)
}

func (c checkedTx) Query(ctx context.Context, statement string, args ...any) (bridge.Rows, error) {
	if err := c.t.messages.Err(); err != nil {
		return nil, err
	}
	return c.uncheckedTx.Query(ctx, statement, args...)
}

// uncheckedTx executes statements of TxMessages, also after fn has returned.
type uncheckedTx struct{ t *Tx }

func (u uncheckedTx) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := u.t.exec(ctx, statement, args...)
	return tag.RowsAffected(), err
}

func (u uncheckedTx) Query(ctx context.Context, statement string, args ...any) (bridge.Rows, error) {
	if err := u.t.started(ctx); err != nil {
		return nil, err
	}
	return pgxbridge.Tx(u.t.tx).Query(ctx, statement, args...)
}
