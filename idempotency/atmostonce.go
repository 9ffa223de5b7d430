package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// An Effect is done outside of the database: an e-mail, a payment. What it returns decides what
// happens to the message:
//
//	nil             it was done
//	NotDone(err)    it certainly was not, and nothing of it can still come
//	another error   nobody knows: the message is doubtful, and so it is after a panic
//
// It must end when ctx does. Options.EffectTimeout ends ctx; a shutdown does not.
type Effect func(ctx context.Context, d amqp.Delivery) error

type notDoneError struct{ err error }

func (e *notDoneError) Error() string { return e.err.Error() }
func (e *notDoneError) Unwrap() error { return e.err }

// NotDone marks the error of an effect that certainly was not done: the connection was refused,
// the server said no. The effect may then be tried again. If no retry can help, return
// NotDone(backoff.Permanent(err)).
func NotDone(err error) error {
	if err == nil {
		err = errors.New("not done")
	}
	return &notDoneError{err}
}

var errEffectTimeout = errors.New("effect ran for longer than Options.EffectTimeout")

// errAgain is what a transaction ends with when another one came between two of its
// statements.
var errAgain = errors.New("the message's row has changed meanwhile")

// AtMostOnce runs effect at most once for each key, whatever crashes, and acks d. The inbox's
// tables must be in db. It takes three steps:
//
//  1. claim the key and write a row that says 'started'; commit
//  2. run the effect
//  3. delete the row, which means 'done'; commit; then ack
//
// If the process dies before the commit of step 1, it has done nothing, and the redelivery
// starts anew. If it dies between the two commits, it leaves the row. The redelivery finds the
// row, does not repeat the effect, stores the message in the row and acks. If it dies after the
// commit of step 3, it leaves a claim without a row, and the redelivery is a duplicate.
//
// If step 1 takes longer than Options.EffectTimeout, step 2 is not begun: the message is tried
// again. A started row is doubtful if its effect has not ended after twice Options.EffectTimeout, or
// has returned neither nil nor NotDone. Doubtful messages wait, with their content, for an
// operator (Pending, MarkDone, Retry) or for Options.FindOut. A worker that was only slow
// resolves the doubt itself when it ends. An effect that was NotDone leaves no row. It is tried
// again as a handler is, Options.Attempts times. Then the message is dead-lettered, and handled
// as new if it is put back.
//
// AtMostOnce returns nil when the message is done, a duplicate, doubtful, kept (for Resume), or
// dead-lettered. Otherwise the error is ErrHandedBack, ErrLeftUnacked or ErrNotAcked, as with
// Handle. When ctx ends, an effect that has begun is not interrupted, and its result is recorded:
// to stop, wait until AtMostOnce returns. If the database does not answer until Options.Hold ends, the message is
// handed back, and its row stays 'started'.
//
// A key claimed by Handle is a duplicate here, and the other way round; a consumer
// should use one of AtMostOnce, Handle and Accept for all its messages.
func (g *Guard) AtMostOnce(ctx context.Context, db *sql.DB, d amqp.Delivery, effect Effect) error {
	if db == nil || effect == nil {
		panic("idempotency: AtMostOnce needs a database and an effect")
	}
	defer g.purgeSome(ctx, db, d)
	return g.deliver(ctx, d, func(ctx context.Context) (outcome, error) {
		key, err := g.key(d)
		if err != nil {
			return unfinished, err
		}
		message, err := g.storable(d)
		if err != nil {
			return unfinished, err
		}
		mine := driver.Pending{Key: key, State: driver.Started, Run: uuid.NewString(), Attempts: 1}
		ended, started := unfinished, time.Now()
		until, cancel, _ := untilStop(ctx) // nothing has begun yet
		defer cancel()
		err = g.recordUntil(until, ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
			ended, err = g.start(ctx, tx, &mine, message)
			return err
		})
		if err != nil || ended != unfinished {
			return ended, err
		}
		return g.perform(ctx, db, started, mine, message, effect, d, func(ctx context.Context, cause error) (outcome, error) {
			return g.release(ctx, db, mine, cause)
		})
	})
}

// start makes mine the row of its key, or tells how the delivery ends without one. It
// may run again after a commit whose answer was lost.
func (g *Guard) start(ctx context.Context, tx bridge.Tx, mine *driver.Pending, message []byte) (outcome, error) {
	fresh, err := g.claim(ctx, tx, mine.Key)
	if err != nil {
		return unfinished, err
	}
	if fresh {
		// Without a claim there may still be a row, if the claim has been purged.
		added, err := g.inbox.AddPending(ctx, tx, g.consumer, *mine, 2*g.opts.EffectTimeout)
		if added || err != nil {
			return unfinished, err
		}
	}
	claimed, found, err := g.inbox.LookUp(ctx, tx, g.consumer, mine.Key)
	switch {
	case err != nil:
		return unfinished, err
	case found == nil && claimed:
		return duplicate, nil
	case found == nil:
		return unfinished, errAgain // released since our claim was refused
	case found.Run == mine.Run:
		return unfinished, nil
	case found.State == driver.Ready:
		mine.Attempts = found.Attempts + 1
		return unfinished, sure(g.inbox.ChangePending(ctx, tx, g.consumer, found.Run, *mine, 2*g.opts.EffectTimeout))
	case len(found.Message) == 0:
		err = sure(g.inbox.AttachMessage(ctx, tx, g.consumer, found.Key, found.Run, message))
	}
	if err == nil {
		g.log.Warn("the effect of the message was started before", "message_id", mine.Key,
			"state", found.State, "since", found.Since, "error", found.Error)
	}
	if found.State == driver.Failed {
		return kept, err
	}
	return doubtful, err
}

// errNotBegun is why an effect was not begun.
var errNotBegun = errors.New("the inbox answered so late that Options.EffectTimeout is over")

// perform runs the effect of a started message, and records how it has ended. message is the same as d, as stored.
//
// started is a time before the row was written. The database counts from the row's time, and the
// commit may have been answered long after that: another may have been told to run the effect.
func (g *Guard) perform(ctx context.Context, db *sql.DB, started time.Time, mine driver.Pending, message []byte, effect Effect, d amqp.Delivery,
	notDone func(ctx context.Context, cause error) (outcome, error)) (outcome, error) {
	failure := g.runEffect(context.WithoutCancel(ctx), started, mine.Key, effect, d)

	// What has happened is recorded also if the caller wants to stop, or the effect has
	// outlasted everything.
	limit := time.Now().Add(g.opts.shortDelay())
	if held, _ := ctx.Deadline(); held.After(limit) {
		limit = held
	}
	recording, cancel := context.WithDeadlineCause(context.WithoutCancel(ctx), limit, errHeldTooLong)
	defer cancel()
	switch {
	case failure == nil:
		return g.finish(recording, db, mine)
	case errors.As(failure, new(*notDoneError)):
		return notDone(recording, failure)
	default:
		return g.doubt(recording, db, mine, message, failure)
	}
}

// runEffect runs the effect, unless its time is over.
func (g *Guard) runEffect(ctx context.Context, started time.Time, key string, effect Effect, d amqp.Delivery) error {
	// While a machine is suspended only the clock on the wall goes on, as the database's does.
	now := time.Now()
	if took := max(now.Sub(started), now.Round(0).Sub(started.Round(0))); took >= g.opts.EffectTimeout {
		return NotDone(RetryLater(errNotBegun, 0))
	}
	ctx, end := context.WithDeadlineCause(ctx, started.Add(g.opts.EffectTimeout), errEffectTimeout)
	defer end()
	failure := g.contain("effect", key, func() error { return effect(ctx, d) })
	if failure != nil && ctx.Err() != nil {
		failure = fmt.Errorf("%w: %w", context.Cause(ctx), failure)
	}
	return failure
}

func (g *Guard) finish(ctx context.Context, db *sql.DB, mine driver.Pending) (outcome, error) {
	return handled, g.record(ctx, db, func(ctx context.Context, tx bridge.Tx) error {
		removed, err := g.inbox.RemovePending(ctx, tx, g.consumer, mine.Key, mine.Run)
		if err == nil && !removed {
			g.log.Warn("an effect was done, and its row is gone or another's", "message_id", mine.Key)
		}
		return err
	})
}

// release makes it as if nothing had been started: unless the message was attached to
// the row by another delivery, which was acked then; the row keeps it for Resume.
func (g *Guard) release(ctx context.Context, db *sql.DB, mine driver.Pending, cause error) (outcome, error) {
	attached := false
	err := g.record(ctx, db, func(ctx context.Context, tx bridge.Tx) error {
		removed, err := g.inbox.RemoveBarePending(ctx, tx, g.consumer, mine.Key, mine.Run)
		if err != nil {
			return err
		}
		if removed {
			return g.inbox.Unclaim(ctx, tx, g.consumer, mine.Key)
		}
		attached, err = g.inbox.ChangePending(ctx, tx, g.consumer, mine.Run, driver.Pending{
			Key: mine.Key, State: driver.Ready, Run: uuid.NewString(), Attempts: mine.Attempts, Error: cause.Error(),
		}, g.opts.delay(mine.Attempts))
		return err
	})
	if err == nil && attached {
		return kept, nil
	}
	if err == nil {
		err = &handlerError{fmt.Errorf("run effect: %w", cause)}
	}
	return unfinished, err
}

func (g *Guard) doubt(ctx context.Context, db *sql.DB, mine driver.Pending, message []byte, cause error) (outcome, error) {
	mine.State, mine.Error, mine.Message = driver.Doubtful, cause.Error(), message
	g.log.Error("nobody knows whether the effect was done", "message_id", mine.Key, "error", cause)
	return doubtful, g.record(ctx, db, func(ctx context.Context, tx bridge.Tx) error {
		_, err := g.inbox.ChangePending(ctx, tx, g.consumer, mine.Run, mine, 0)
		return err
	})
}

// record commits what fn writes, and tries again until it has or ctx ends. fn must be
// one that may run again after a commit whose answer was lost.
func (g *Guard) record(ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx bridge.Tx) error) error {
	return g.recordUntil(ctx, ctx, db, fn)
}

// recordUntil is record that does not try again after until has ended.
func (g *Guard) recordUntil(until, ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx bridge.Tx) error) error {
	delays := g.opts.shortDelays()
	for {
		err := inOwnTx(ctx, db, fn)
		if err == nil || errors.As(err, new(*refusal)) {
			return err
		}
		if until.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(until), err)
		}
		delay := delays.NextBackOff()
		g.log.Warn("the inbox cannot be written, trying again", "delay", delay, "error", err)
		if !pause(until, delay) {
			return fmt.Errorf("%w: %w", context.Cause(until), err)
		}
	}
}

func inOwnTx(ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx bridge.Tx) error) error {
	var tx *sql.Tx
	err := driver.Begin(ctx, db, func() (err error) {
		tx, err = db.BeginTx(ctx, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer tx.Rollback() // without effect after a commit
	if err := fn(ctx, bridge.SQL(tx)); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// sure makes an error of a change that found another row than it was meant for.
func sure(changed bool, err error) error {
	if err == nil && !changed {
		return errAgain
	}
	return err
}

func permanent(err error) bool { return errors.As(err, new(*backoff.PermanentError)) }
