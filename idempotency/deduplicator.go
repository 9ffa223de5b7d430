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
// goroutines end with their call. In memory it keeps its counters, the position of its purge and, of
// messages that are not done, the failed attempts of up to 10,000 and the lost connections of up to
// 10,000.
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

// HandleIn is Deduplicator.Handle in a transaction of any library. begin begins one, on a separate
// connection, on the database that has the inbox's tables. An error of begin counts against no
// message. The purge uses the inbox's DB.
func HandleIn[T Transaction](ctx context.Context, dedup *Deduplicator, begin func(ctx context.Context) (T, error), d amqp.Delivery, fn func(ctx context.Context, tx T) error) error {
	if begin == nil || fn == nil {
		panic("idempotency: HandleIn needs a transaction and a function")
	}
	dedup.refuseTxOptions("HandleIn")
	return handleIn(ctx, dedup.keys, dedup.keys.Inbox.DB(), begin, d, fn)
}

// HandleWithClaim is Handle in a transaction that the caller begins and commits, with any library:
//
//	err := dedup.HandleWithClaim(ctx, d, func(ctx context.Context, claim idempotency.Claim) error {
//		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//			if fresh, err := claim(ctx, pgxbridge.Tx(tx)); err != nil || !fresh {
//				return err
//			}
//			_, err := tx.Exec(ctx, `INSERT INTO emails …`, d.Body)
//			return err
//		})
//	})
//
// fn must claim before it does anything else in the transaction, do all its work there, and return
// nil only after the commit. It must not ack or reject d. When fn has returned, HandleWithClaim checks
// from another connection of the inbox's DB whether the claim is committed. If so, it acks d. If fn
// forgets the commit, or leaves the transaction open, the attempt fails. If fn returns an error
// although its claim is committed, because the answer to the COMMIT was lost, the message counts as
// handled.
//
// With pgx, package pgxreceiver needs no second connection.
//
// Attempts, errors, pauses and Options.Hold are as with Handle. A failed attempt counts against the
// handler, unless the claim itself fails or the database does not answer afterwards. A crash at any
// moment loses no message.
func (dedup *Deduplicator) HandleWithClaim(ctx context.Context, d amqp.Delivery, fn func(ctx context.Context, claim Claim) error) error {
	if fn == nil {
		panic("idempotency: HandleWithClaim needs a function")
	}
	dedup.refuseTxOptions("HandleWithClaim")
	return handleWithClaim(ctx, dedup.keys, d, fn)
}

// HandleBatch is Handle of several deliveries in one transaction. It claims their keys with one
// statement, runs fn once for all messages whose key is new, commits, and acks all of them. So they
// share the round trips, the commit and, in a batch consumer, the ack. [NewBatchConsumer] gathers
// batches. fn may write the rows of all messages with one statement, which saves most.
//
// fn handles the messages of fresh, which are in the order of ds, through tx. A copy of a message in
// the same batch is left out, as a duplicate. If fn returns an error or panics, or the database
// refuses the commit, the transaction is rolled back and the batch is split: each message is handled
// alone, with a slice of length one and a separate transaction, as by Handle. So fn may run several
// times for a message. Only the message that fails is retried and dead-lettered; its pauses delay no
// other message of the batch. One attempt runs at a time, and the next one begins after 10 seconds, or
// an eighth of Options.Hold if that is less, if it has not ended. A message whose key cannot be used,
// or is too old, and one that comes from a retry queue, is handled alone from the start. In a Consumer
// with one worker the messages keep their order, and a message waits for the pauses of the previous
// one.
//
// A failed attempt at a batch counts against no message: in it Attempt is 0. If the database is
// unavailable, or ends the transaction because of a deadlock, the batch is tried again as a whole.
// An attempt at the batch may take a quarter of Options.Hold; then fn's context ends. The batch is
// also split if such an attempt fails after that time or later, or if at the third attempt or
// later fn meets a deadlock or the database refuses the claims. So a message whose claim hangs, or
// whose handling ends only with its context, stops no other message. If fn ignores its context for
// ever, the whole batch waits for it, in this process.
//
// The keys are claimed in sorted order, whatever the order of ds, so two batches with some of the
// same messages cannot deadlock: the second batch waits until the first has ended, and handles the
// messages that are then left.
//
// ctx and the errors are as with Handle; the error joins the errors of the messages. When
// HandleBatch returns, the broker was told about each delivery of ds, except for the ones left
// unacked. All deliveries must come from one channel. ds must not be changed meanwhile. Its length
// bounds the memory: HandleBatch keeps a key for each delivery, and if the batch is split, a
// goroutine.
func (dedup *Deduplicator) HandleBatch(ctx context.Context, db *sql.DB, ds []amqp.Delivery, fn func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error) error {
	if db == nil || fn == nil {
		panic("idempotency: HandleBatch needs a database and a function")
	}
	return handleBatch(ctx, dedup.keys, db, engine.BeginOn(db, dedup.keys.Opts.TxOptions), ds, func(ctx context.Context, tx *engine.SQLTransaction, fresh []amqp.Delivery) error {
		return fn(ctx, tx.SQL, fresh)
	})
}

// HandleBatchIn is Deduplicator.HandleBatch in a transaction of any library; begin is as in HandleIn.
func HandleBatchIn[T Transaction](ctx context.Context, dedup *Deduplicator, begin func(ctx context.Context) (T, error), ds []amqp.Delivery, fn func(ctx context.Context, tx T, fresh []amqp.Delivery) error) error {
	if begin == nil || fn == nil {
		panic("idempotency: HandleBatchIn needs a transaction and a function")
	}
	dedup.refuseTxOptions("HandleBatchIn")
	return handleBatch(ctx, dedup.keys, dedup.keys.Inbox.DB(), begin, ds, fn)
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
