package idempotency

import (
	"context"
	"database/sql"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// A Deduplicator handles each message once for one consumer. It is safe for concurrent use. Its
// goroutines end with their call. In memory it keeps its counters, the position of its purge and,
// of messages that it has handed back or left unacked, the failed attempts of up to 10,000 and the
// lost connections of up to 10,000.
type Deduplicator struct {
	keys *engine.Keys
}

// New returns a Deduplicator that claims keys in inbox in the name of consumer. All processes that
// share the work must use the same name. Consumers that each must see every message (two services with
// a queue each, on one database) must use different names. The name is stored with every key: under a
// new name all messages are new. It has 1 to 255 bytes of UTF-8. opts must say where a message goes
// that cannot be handled. New does not query the database. Its error names the wrong argument or
// option.
func New(inbox driver.Claims, consumer string, opts *Options) (*Deduplicator, error) {
	if opts == nil {
		opts = new(Options)
	}
	keys, err := engine.NewKeys(inbox, consumer, "Options", engine.Options(*opts))
	if err != nil {
		return nil, fmt.Errorf("new deduplicator: %w", err)
	}
	return &Deduplicator{keys}, nil
}

// Handle runs fn once per key (the message ID, unless Options.Key returns another). fn and the
// claim of the key are in one transaction on db; Handle acks d after the commit. The inbox's tables
// must be in db.
//
// fn does its work through tx, with the given context. It must not commit or roll back tx: then the
// attempt fails, and after a commit the next one is a duplicate. It must not ack or reject d. It
// may run several times per delivery, each time in a fresh transaction after the earlier one was
// rolled back; only one commits. A panic in it counts as an error. fn's context ends Options.Drain
// after ctx, or with Options.Hold. Then the transaction is rolled back at once; Handle waits for fn
// to return.
//
// ctx is the receiver's context: it ends when the receiver stops. Handle returns nil when the
// message is handled, a duplicate, or dead-lettered. Otherwise the error is ErrHandedBack,
// ErrLeftUnacked if ctx was cancelled or had ended before, or ErrNotAcked if only the ack failed.
// Handle blocks for the retries and pauses of this delivery, at most for Options.Hold and for as
// long as fn ignores its context; on MySQL and MariaDB also for as long as a COMMIT gets no answer
// (readTimeout, see package mysql). A crash at any moment loses no message: see the package
// comment.
func (dedup *Deduplicator) Handle(ctx context.Context, db *sql.DB, d amqp.Delivery, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if db == nil || fn == nil {
		panic("idempotency: Handle needs a database and a function")
	}
	return handleIn(ctx, dedup.keys, db, engine.BeginOn(db, dedup.keys.Opts.TxOptions), d, func(ctx context.Context, tx *engine.SQLTransaction) error { return fn(ctx, tx.SQL) })
}

// Purge deletes the keys of this consumer that are older than Options.Retention, in one pass over
// all of them, and returns their number. It is for a backlog, for example after Options.Retention
// was shortened. Handle, HandleBatch and HandleWithClaim purge too, one step for every 200 messages.
//
// The pass goes through the keys in the order of the primary key, in steps of up to 500. Each step
// has short transactions that lock only the old claims which they delete. After each step Purge
// pauses, so that it works a fifth of the time. It skips keys that contain their time (see
// Options.Retention) and are new enough; it reads all others. A crash or an error leaves whole
// steps. When ctx ends, the error wraps its cause. With a negative Retention, which keeps keys for
// ever, Purge does nothing.
func (dedup *Deduplicator) Purge(ctx context.Context, db *sql.DB) (forgotten int64, err error) {
	return dedup.keys.Purge(ctx, db)
}

// Stats returns the counts so far.
func (dedup *Deduplicator) Stats() Stats { return Stats(dedup.keys.Stats()) }

// refuseTxOptions panics if the caller of a method, who begins the transactions, has set options that
// would have no effect.
func (dedup *Deduplicator) refuseTxOptions(method string) {
	if dedup.keys.Opts.TxOptions != nil {
		panic("idempotency: Options.TxOptions is set, but the caller of " + method + " begins the transactions")
	}
}
