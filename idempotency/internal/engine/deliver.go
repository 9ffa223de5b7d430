package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// ErrGone: the attempt's goroutine exited without returning, so the delivery is handed back.
var ErrGone = errors.New("attempt's goroutine exited without returning, by runtime.Goexit or a panic outside the handler")

// Deliver makes attempts at d until one of them ends it, and tells the broker. It also tells the
// broker if the goroutine ends first.
func (e *Engine) Deliver(ctx context.Context, d amqp.Delivery, attempt func(ctx context.Context) (Outcome, error)) error {
	return e.DeliverUntil(ctx, time.Now().Add(e.Opts.Hold), d, attempt)
}

// DeliverUntil is Deliver of a delivery that may be held until limit.
func (e *Engine) DeliverUntil(ctx context.Context, limit time.Time, d amqp.Delivery, attempt func(ctx context.Context) (Outcome, error)) error {
	ended := false
	defer func() {
		if !ended {
			e.Log.Error("message not handled", "message_id", d.MessageId, "error", e.Unfinished(ctx, d, ErrGone))
		}
	}()
	err := e.tryToEnd(ctx, limit, d, attempt)
	ended = true
	return err
}

// tryToEnd makes attempts at d, with growing pauses, until one of them ends it, or it is given up,
// or limit is reached, or the caller stops; and tells the broker.
func (e *Engine) tryToEnd(parent context.Context, limit time.Time, d amqp.Delivery, attempt func(ctx context.Context) (Outcome, error)) (result error) {
	if err := stopped(parent); err != nil {
		return e.leaveUnacked(d, err)
	}
	ctx, cancel := e.Attempting(parent, limit)
	defer cancel()

	failed, retries := e.Retried(d)
	known := e.failures.take(d.MessageId)
	failed = max(failed, known.failed)
	defer func() {
		anew := e.Opts.HandBack && failed >= e.Opts.Attempts
		if !anew && (errors.Is(result, ErrHandedBack) || errors.Is(result, ErrLeftUnacked)) {
			known.failed = failed
			e.failures.put(d.MessageId, known)
		}
	}()
	var caller context.Context // nil until an attempt fails: most messages need none
	var delays *backoff.ExponentialBackOff
	cancelCaller := func() {}
	defer func() { cancelCaller() }()
	copied := false // the broker may have a copy of d
	for {
		last := !e.Opts.HandBack && failed+1 >= e.Opts.Attempts
		ended, err := attempt(WithAttempt(ctx, failed+1, last))
		if err == nil {
			e.Count.Of(ended).Add(1)
			return e.Ack(d)
		}
		if caller == nil {
			caller, cancelCaller = e.Caller(parent, limit)
			delays = e.Opts.ShortDelays()
		}
		if IsRefusal(err) {
			return e.giveUp(caller, WithAttempt(ctx, failed, true), d, err)
		}
		if caller.Err() != nil { // the caller's end may be why the attempt failed
			return e.Unfinished(caller, d, fmt.Errorf("%w: %w", context.Cause(caller), err))
		}
		var delay time.Duration
		lossCounts := e.countsLoss(&known, err)
		counted := lossCounts || IsFailure(err) && e.Counts(err)
		if counted {
			e.Count.FailedAttempts.Add(1)
			failed++
			if failed >= e.Opts.Attempts || Permanent(err) {
				return e.giveUp(caller, WithAttempt(ctx, failed, true), d, err)
			}
			delay = e.Opts.Delay(failed)
			delays.Reset()
		} else {
			delay = after(err, delays.NextBackOff)
		}
		if queue, found := e.retryQueue(caller, err, counted, failed, retries); found && !copied {
			failure := e.putAside(ctx, queue, d, failed, retries+1)
			if failure == nil {
				e.Log.Warn("attempt failed, trying again later", "message_id", d.MessageId,
					"failed", failed, "of", e.Opts.Attempts, "queue", queue.Name, "error", err)
				e.Count.RetriedLater.Add(1)
				known.failed = 0 // the copy carries this number; only its lost connections are remembered here
				e.failures.put(d.MessageId, known)
				return e.Ack(d)
			}
			copied = errors.Is(failure, bridge.ErrUnconfirmed) // each further try might publish another copy
		}
		e.Log.Warn("attempt failed, trying again", "message_id", d.MessageId,
			"failed", failed, "of", e.Opts.Attempts, "retry_in", delay, "error", err)
		if !Pause(caller, delay) {
			return e.Unfinished(caller, d, fmt.Errorf("%w: %w", context.Cause(caller), err))
		}
	}
}

// Attempting returns the context of attempts at a delivery that is held until limit. It ends there,
// or Options.Drain after parent, or with the context of the Consumer's handlers.
func (e *Engine) Attempting(parent context.Context, limit time.Time) (ctx context.Context, cancel func()) {
	cancelDraining := func() {}
	if SessionOf(parent) == nil {
		parent, cancelDraining = e.Draining(parent)
	}
	ctx, cancelCtx := context.WithDeadlineCause(parent, limit, e.ErrHeldTooLong)
	return ctx, func() { cancelCtx(); cancelDraining() }
}

// Caller returns the context of a call that handles a delivery until limit. After it has ended, no
// attempt begins and no pause continues.
func (e *Engine) Caller(parent context.Context, limit time.Time) (ctx context.Context, cancel func()) {
	until, cancelUntil := UntilStop(parent)
	ctx, cancelCtx := context.WithDeadlineCause(until, limit, e.ErrHeldTooLong)
	return ctx, func() { cancelCtx(); cancelUntil() }
}
