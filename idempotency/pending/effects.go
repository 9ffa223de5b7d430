package pending

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// Effects handles each message of one consumer by [Effects.AtMostOnce]. It is safe for concurrent
// use, and starts no goroutines. In memory it keeps the same data as an idempotency.Deduplicator.
type Effects struct {
	*messages
	opts Options
}

// New returns an Effects that claims keys in inbox in the name of consumer. Name and opts follow the
// rules of idempotency.New.
func New(inbox driver.PendingMessages, consumer string, opts *Options) (*Effects, error) {
	filled, m, err := opts.open(inbox, consumer)
	if err != nil {
		return nil, fmt.Errorf("new effects: %w", err)
	}
	return &Effects{m, filled}, nil
}

// AtMostOnce runs effect at most once for each key, at any crash, and acks d. The inbox's tables
// must be in db. It takes three steps:
//
//  1. claim the key and write a row that says 'started'; commit
//  2. run the effect
//  3. delete the row, which means 'done'; commit; then ack
//
// If the process dies before the commit of step 1, it has done nothing, and the redelivery starts
// anew. If it dies between the two commits, it leaves the row. The redelivery finds the row, does
// not repeat the effect, stores the message in the row and acks. If the process dies after the
// commit of step 3, it leaves a claim without a row, and the redelivery is a duplicate.
//
// If step 1 takes longer than Options.EffectTimeout, step 2 is not begun: the message is tried
// again. A started row becomes doubtful if its effect has not ended after twice
// Options.EffectTimeout, or has returned neither nil nor NotDone. Doubtful messages wait, with
// their content, for an operator (List, MarkDone, Retry) or for Options.FindOut. A worker that was
// only slow resolves the doubt itself when it ends. An effect that was NotDone leaves no row. It is
// retried like a handler, Options.Attempts times. Then the message is dead-lettered, and handled as
// new if it is put back.
//
// AtMostOnce returns nil when the message is done, a duplicate, doubtful, kept (for Resume), or
// dead-lettered. Otherwise the error is ErrHandedBack, ErrLeftUnacked or ErrNotAcked, as with
// Handle. When ctx ends, an effect that has begun is not interrupted, and its result is recorded:
// to stop, wait until AtMostOnce returns. A Consumer waits for ConsumerOptions.Drain. If the
// database does not answer until Options.Hold ends, the message is handed back, and its row stays
// 'started'.
//
// A key claimed by Handle is a duplicate here, and vice versa; a consumer should use one of
// AtMostOnce, Handle and Accept for all its messages.
func (e *Effects) AtMostOnce(ctx context.Context, db *sql.DB, d amqp.Delivery, effect Effect) error {
	if db == nil || effect == nil {
		panic("pending: AtMostOnce needs a database and an effect")
	}
	defer e.keys.PurgeSome(ctx, db, d)
	caller := ctx
	return e.keys.Deliver(ctx, d, func(ctx context.Context) (engine.Outcome, error) {
		key, err := e.keys.Key(d)
		if err != nil {
			return engine.Unfinished, err
		}
		message, err := e.storable(d)
		if err != nil {
			return engine.Unfinished, err
		}
		first := e.transition(driver.Pending{Key: key}, begun, nil)
		mine := first.next
		ended, started := engine.Unfinished, time.Now()
		held, _ := ctx.Deadline()
		until, cancel := e.keys.Caller(caller, held) // the effect has not begun yet
		defer cancel()
		err = e.commitUntil(until, ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
			mine, ended, err = e.start(ctx, tx, first, message)
			return err
		})
		if err != nil || ended != engine.Unfinished {
			return ended, err
		}
		mine.Message = message
		return e.perform(ctx, db, started, mine, effect, d, func(error) event { return released })
	})
}

// start writes the row of a key whose run begins, and returns it, or how the delivery ends without
// a run. It may run again after a commit whose answer was lost.
func (e *Effects) start(ctx context.Context, tx bridge.Tx, first change, message []byte) (driver.Pending, engine.Outcome, error) {
	mine := first.next
	fresh, err := e.keys.Claim(ctx, tx, mine.Key)
	if err != nil {
		return mine, engine.Unfinished, err
	}
	if fresh {
		// Without a claim a row may still exist, if the claim has been purged.
		added, err := e.inbox.AddPending(ctx, tx, e.keys.Consumer, mine, first.due)
		if added || err != nil {
			return mine, engine.Unfinished, err
		}
	}
	claimed, found, err := e.inbox.LookUp(ctx, tx, e.keys.Consumer, mine.Key)
	switch {
	case err != nil:
		return mine, engine.Unfinished, err
	case found == nil && claimed:
		return mine, engine.Duplicate, nil
	case found == nil:
		return mine, engine.Unfinished, errAgain // the row was released since the claim was refused
	case found.Run == mine.Run:
		return *found, engine.Unfinished, nil
	case found.State == driver.Ready:
		c := e.transition(*found, begun, nil)
		c.next.Run = mine.Run // so that start recognizes the row if it runs again
		mine, err = e.advance(ctx, tx, *found, c)
		return mine, engine.Unfinished, err
	case len(found.Message) == 0:
		err = expectChanged(e.inbox.AttachMessage(ctx, tx, e.keys.Consumer, found.Key, found.Run, message))
	}
	if err == nil {
		e.keys.Log.Warn("the effect of the message was started before", "message_id", mine.Key,
			"state", found.State, "since", found.Since, "error", found.Error)
	}
	if found.State == driver.Failed {
		return mine, engine.Kept, err
	}
	return mine, engine.Doubtful, err
}
