package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// togetherMost is how often a batch is tried as a whole if its handler meets a deadlock or a
// similar error. Then its messages are handled alone, because one of them may be the cause.
const togetherMost = 3

// togetherPart is the divisor of Options.Hold for an attempt at a whole batch. The rest of Hold is
// for the messages alone.
const togetherPart = 4

var errTogetherTooLong = errors.New("an attempt at the whole batch took longer than a quarter of Options.Hold")

// handleBatch is HandleBatchIn. The purge uses db.
func handleBatch[T engine.Transaction](ctx context.Context, keys *engine.Keys, db *sql.DB, begin func(ctx context.Context) (T, error), ds []amqp.Delivery, fn func(ctx context.Context, tx T, fresh []amqp.Delivery) error) error {
	if len(ds) == 0 {
		return nil
	}
	defer keys.PurgeSome(ctx, db, ds...)
	limit := time.Now().Add(keys.Opts.Hold)
	b := &batch[T]{keys: keys, begin: begin, fn: fn, limit: limit, turn: make(chan struct{}, 1)}
	together, alone := b.sortOut(ds)
	untold := ds
	defer func() { // runs if the handler ends the goroutine
		for _, d := range untold {
			keys.Log.Error("message not handled", "message_id", d.MessageId, "error", keys.Unfinished(ctx, d, engine.ErrGone))
		}
	}()
	result, apart := b.tryTogether(ctx, together)
	untold = nil
	if apart {
		alone = ds
	}
	return errors.Join(result, b.handleAlone(ctx, alone))
}

// A batch is a call of HandleBatch.
type batch[T engine.Transaction] struct {
	keys  *engine.Keys
	begin func(ctx context.Context) (T, error)
	fn    func(ctx context.Context, tx T, fresh []amqp.Delivery) error
	limit time.Time     // ds may be held until then
	turn  chan struct{} // of the one attempt at a single message that runs, for slowAttempt() at most
}

// slowAttempt returns how long an attempt may delay the other messages of its batch. Another
// receiver may have claimed the key of one message, and hang. The time is shorter than an attempt
// at the whole batch may take, and leaves time in Options.Hold for the messages alone.
func (b *batch[T]) slowAttempt() time.Duration {
	return min(10*time.Second, b.keys.Opts.Hold/(2*togetherPart))
}

// A keyed is a delivery with its key.
type keyed struct {
	amqp.Delivery
	key string
}

// sortOut returns the deliveries that may be handled together, and the others.
func (b *batch[T]) sortOut(ds []amqp.Delivery) (together []keyed, alone []amqp.Delivery) {
	for _, d := range ds {
		key, err := b.keys.Key(d)
		if err == nil {
			err = b.keys.JudgeAge(key)
		}
		// A message that has failed before would make this batch fail too.
		if failed, retries := b.keys.Retried(d); err != nil || failed > 0 || retries > 0 {
			alone = append(alone, d)
			continue
		}
		together = append(together, keyed{d, key})
	}
	return together, alone
}

// tryTogether handles deliveries in one transaction and tells the broker, or reports that each is
// to be handled alone.
func (b *batch[T]) tryTogether(parent context.Context, ds []keyed) (result error, apart bool) {
	if len(ds) == 0 {
		return nil, false
	}
	caller, cancelCaller := b.keys.Caller(parent, b.limit)
	defer cancelCaller()
	ctx, cancel := b.keys.Attempting(parent, b.limit)
	defer cancel()
	if caller.Err() != nil {
		return nil, true // handleAlone leaves each unacked
	}
	delays := b.keys.Opts.ShortDelays()
	for tries := 1; ; tries++ {
		begun := time.Now()
		fresh, err := b.attemptWithin(ctx, b.keys.Opts.Hold/togetherPart, ds)
		if err == nil {
			return b.ackCommitted(ds, fresh), false
		}
		if caller.Err() != nil { // the caller's end may be why the attempt failed
			reason := fmt.Errorf("%w: %w", context.Cause(caller), err)
			var all []error
			for _, d := range ds {
				all = append(all, b.keys.Unfinished(caller, d.Delivery, reason))
			}
			return errors.Join(all...), false
		}
		if len(ds) == 1 || time.Since(begun) >= b.slowAttempt() || b.blames(err, tries) {
			b.keys.Log.Warn("batch failed, handling its messages one by one", "messages", len(ds), "error", err)
			return nil, true
		}
		delay := delays.NextBackOff()
		b.keys.Log.Warn("batch failed, trying again", "messages", len(ds), "retry_in", delay, "error", err)
		engine.Pause(caller, delay)
	}
}

// A refusedClaim is the error of a claim that the database refused on a connection that still
// answers. One of the keys may be the cause: a text that the database cannot encode.
type refusedClaim struct{ err error }

func (e *refusedClaim) Error() string { return e.err.Error() }
func (e *refusedClaim) Unwrap() error { return e.err }

// blames reports whether one of the messages may have caused err. That is possible if the
// connection was dead after the handler had run: a statement too large for the server has this
// effect each time.
func (b *batch[T]) blames(err error, tries int) bool {
	if engine.IsLost(err) {
		return true
	}
	if errors.As(err, new(*refusedClaim)) {
		return tries >= togetherMost
	}
	return engine.IsFailure(err) && (b.keys.Counts(err) || engine.IsLater(err) || tries >= togetherMost)
}

// attemptWithin is attempt with a time limit.
func (b *batch[T]) attemptWithin(ctx context.Context, most time.Duration, ds []keyed) (fresh map[string]bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, most, errTogetherTooLong)
	defer cancel()
	return b.attempt(ctx, ds)
}

// attempt claims the keys of ds and runs the handler for the new ones, in one transaction. It
// returns the new keys.
func (b *batch[T]) attempt(ctx context.Context, ds []keyed) (fresh map[string]bool, err error) {
	keys := make([]string, len(ds))
	for i, d := range ds {
		keys[i] = d.key
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	_, err = engine.InTransaction(ctx, b.keys.Engine, b.begin, func(ctx context.Context, tx T) (engine.Outcome, error) {
		claimed, err := b.keys.Inbox.Claim(ctx, tx, b.keys.Consumer, keys)
		if err != nil {
			tx.Rollback()
			if !b.keys.Inbox.Transient(err) && tx.Ping(ctx) == nil {
				err = &refusedClaim{err}
			}
			return engine.Unfinished, err
		}
		fresh = make(map[string]bool, len(claimed))
		for _, key := range claimed {
			fresh[key] = true
		}
		todo := first(ds, fresh)
		if len(todo) == 0 {
			return engine.Duplicate, nil
		}
		return engine.Handled, b.keys.Run(todo[0].MessageId, func() error { return b.fn(ctx, tx, todo) })
	})
	return fresh, err
}

// first returns the first delivery of each of these keys.
func first(ds []keyed, keys map[string]bool) []amqp.Delivery {
	seen := make(map[string]bool, len(keys))
	all := make([]amqp.Delivery, 0, len(keys))
	for _, d := range ds {
		if keys[d.key] && !seen[d.key] {
			seen[d.key] = true
			all = append(all, d.Delivery)
		}
	}
	return all
}

// ackCommitted counts and acks deliveries that are committed.
func (b *batch[T]) ackCommitted(ds []keyed, fresh map[string]bool) error {
	all := make([]amqp.Delivery, len(ds))
	for i, d := range ds {
		all[i] = d.Delivery
		b.keys.ClearFailures(d.MessageId)
		if fresh[d.key] {
			b.keys.Count.Of(engine.Handled).Add(1)
			fresh[d.key] = false // a second delivery with this key is a copy
		} else {
			b.keys.Count.Of(engine.Duplicate).Add(1)
		}
	}
	return b.keys.AckAll(all)
}

// handleAlone handles each delivery as Handle does. Attempts run one at a time, and the pauses of
// all deliveries run in parallel. If no message may overtake another, the pauses run one at a time
// too.
func (b *batch[T]) handleAlone(ctx context.Context, ds []amqp.Delivery) error {
	if len(ds) == 0 {
		return nil
	}
	caller, cancel := b.keys.Caller(ctx, b.limit)
	defer cancel()
	all := make([]error, len(ds))
	if session := engine.SessionOf(ctx); session != nil && session.OneByOne {
		for i, d := range ds {
			all[i] = b.deliver(ctx, caller, d)
		}
		return errors.Join(all...)
	}
	var running sync.WaitGroup
	for i, d := range ds {
		running.Go(func() { all[i] = b.deliver(ctx, caller, d) })
	}
	running.Wait()
	return errors.Join(all...)
}

// deliver handles a delivery alone. Each attempt waits for its turn.
func (b *batch[T]) deliver(ctx, caller context.Context, d amqp.Delivery) error {
	return b.keys.DeliverUntil(ctx, b.limit, d, func(ctx context.Context) (ended engine.Outcome, err error) {
		key, err := b.keys.Key(d)
		if err != nil {
			return engine.Unfinished, err
		}
		select {
		case b.turn <- struct{}{}:
		case <-caller.Done():
			return engine.Unfinished, context.Cause(caller)
		}
		pass := sync.OnceFunc(func() { <-b.turn })
		defer pass()
		defer time.AfterFunc(b.slowAttempt(), pass).Stop()
		err = b.keys.RecoverPanic("transaction", d.MessageId, func() (err error) { // in a new goroutine a panic would end the process
			ended, err = attempt(ctx, b.keys, b.begin, key, func(ctx context.Context, tx T) error { return b.fn(ctx, tx, []amqp.Delivery{d}) })
			return err
		})
		return ended, err
	})
}
