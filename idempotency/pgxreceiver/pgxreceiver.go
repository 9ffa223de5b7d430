package pgxreceiver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/idempotency"
)

// Handle is Deduplicator.Handle in a transaction on pool, which must lead to the database of
// dedup's inbox. fn must neither commit tx nor roll it back. A serialization failure counts against
// no message. For replies, pass pgxbridge.Tx(tx) to sender.SendTx. The isolation level is in
// options: with idempotency.Options.TxOptions Handle and HandleBatch panic.
func Handle(ctx context.Context, dedup *idempotency.Deduplicator, pool *pgxpool.Pool, options pgx.TxOptions, d amqp.Delivery, fn func(ctx context.Context, tx pgx.Tx) error) error {
	if fn == nil {
		panic("pgxreceiver: Handle needs a function")
	}
	return idempotency.HandleIn(ctx, dedup, beginOn(pool, options), d, func(ctx context.Context, t *transaction) error { return fn(ctx, t.tx) })
}

// HandleBatch is Deduplicator.HandleBatch in a transaction on pool.
func HandleBatch(ctx context.Context, dedup *idempotency.Deduplicator, pool *pgxpool.Pool, options pgx.TxOptions, ds []amqp.Delivery, fn func(ctx context.Context, tx pgx.Tx, fresh []amqp.Delivery) error) error {
	if fn == nil {
		panic("pgxreceiver: HandleBatch needs a function")
	}
	return idempotency.HandleBatchIn(ctx, dedup, beginOn(pool, options), ds, func(ctx context.Context, t *transaction, fresh []amqp.Delivery) error { return fn(ctx, t.tx, fresh) })
}

func beginOn(pool *pgxpool.Pool, options pgx.TxOptions) func(ctx context.Context) (*transaction, error) {
	return func(ctx context.Context) (*transaction, error) {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return nil, fmt.Errorf("begin transaction: %w", err)
		}
		return &transaction{conn: conn, options: options}, nil
	}
}

// A transaction begins with its first statement, which is the Deduplicator's claim.
type transaction struct {
	conn    *pgxpool.Conn
	options pgx.TxOptions
	tx      pgx.Tx // nil before its first statement, and after its commit
	inUse   bool   // the handler has left rows or results open: pgx closes the connection
}

var _ idempotency.Transaction = (*transaction)(nil)

// begin sends the BEGIN together with a statement, whose result is the next one of the batch.
func (t *transaction) begin(ctx context.Context, statement string, args []any) (pgx.BatchResults, error) {
	batch := new(pgx.Batch)
	batch.BeginTx(t.options)
	batch.Queue(statement, args...)
	results := t.conn.SendBatch(ctx, batch)
	t.tx = results.Tx()
	if _, err := results.Exec(); err != nil { // the result of the BEGIN
		return nil, errors.Join(err, results.Close())
	}
	return results, nil
}

func (t *transaction) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	if t.tx != nil {
		return pgxbridge.Tx(t.tx).Exec(ctx, statement, args...)
	}
	results, err := t.begin(ctx, statement, args)
	if err != nil {
		return 0, err
	}
	tag, err := results.Exec()
	return tag.RowsAffected(), errors.Join(err, results.Close())
}

func (t *transaction) Query(ctx context.Context, statement string, args ...any) (bridge.Rows, error) {
	if t.tx != nil {
		return pgxbridge.Tx(t.tx).Query(ctx, statement, args...)
	}
	results, err := t.begin(ctx, statement, args)
	if err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		return nil, errors.Join(err, results.Close())
	}
	return firstRows{rows, results}, nil
}

// firstRows are the rows of the first statement.
type firstRows struct {
	pgx.Rows
	results pgx.BatchResults
}

func (r firstRows) Close() {
	r.Rows.Close()
	_ = r.results.Close() // the rows have returned the error
}

var errInUse = errors.New("the handler has left rows or batch results open: close them before you return")

func (t *transaction) Commit(ctx context.Context) error {
	if t.busy() {
		return errInUse
	}
	err := t.tx.Commit(ctx)
	if err == nil {
		t.tx = nil // leaves Rollback nothing to do
	}
	if errors.Is(err, pgx.ErrTxClosed) {
		err = fmt.Errorf("%w: %w", sql.ErrTxDone, err)
	}
	return err
}

// rollbackLimit bounds a ROLLBACK that the server does not answer.
const rollbackLimit = 5 * time.Second

func (t *transaction) Rollback() {
	if t.tx == nil {
		return
	}
	t.busy()
	ctx, cancel := context.WithTimeout(context.Background(), rollbackLimit)
	defer cancel()
	_ = t.tx.Rollback(ctx) // if it fails, pgx closes the connection
}

// busy reports whether the handler has left the connection in use, and remembers it.
func (t *transaction) busy() bool {
	t.inUse = t.inUse || t.conn.Conn().PgConn().IsBusy()
	return t.inUse
}

// Ping returns nil if the handler has left the connection in use, so that the handler is to blame.
func (t *transaction) Ping(ctx context.Context) error {
	if t.inUse {
		return nil
	}
	return t.conn.Ping(ctx)
}

func (t *transaction) Close() { t.conn.Release() }
