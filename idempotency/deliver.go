package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// An outcome is how a delivery ended that is to be acked.
type outcome int

const (
	unfinished outcome = iota
	handled            // the handler's effects are committed
	duplicate          // they were committed before
	stale              // later ones were committed before
	kept               // the message is stored, to be handled when its turn comes
	doubtful           // the message is stored, and nobody knows whether its effect was done
)

// A refusal is an error that no further attempt can change: the message is dead-lettered.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// errGone is why a delivery is handed back whose call does not return.
var errGone = errors.New("the goroutine has ended in the attempt, by runtime.Goexit or a panic outside of the handler")

// deliver makes attempts at d until one of them ends it, and tells the broker; so it does
// when the goroutine ends first.
func (g *Guard) deliver(ctx context.Context, d amqp.Delivery, attempt func(ctx context.Context) (outcome, error)) error {
	return g.deliverUntil(ctx, time.Now().Add(g.opts.Hold), d, attempt)
}

// deliverUntil is deliver of a delivery that may be kept until limit.
func (g *Guard) deliverUntil(ctx context.Context, limit time.Time, d amqp.Delivery, attempt func(ctx context.Context) (outcome, error)) error {
	ended := false
	defer func() {
		if !ended {
			g.log.Error("message not handled", "message_id", d.MessageId, "error", g.unfinished(ctx, d, errGone))
		}
	}()
	err := g.tryToEnd(ctx, limit, d, attempt)
	ended = true
	return err
}

// tryToEnd makes attempts at d, with growing pauses, until one of them ends it, or it
// is given up, or it has been held for too long, or the caller stops; and tells the broker.
func (g *Guard) tryToEnd(caller context.Context, limit time.Time, d amqp.Delivery, attempt func(ctx context.Context) (outcome, error)) (result error) {
	caller, ctx, cancel := g.hold(caller, limit)
	defer cancel()
	if caller.Err() != nil && context.Cause(caller) != errHeldTooLong {
		return g.leave(d, context.Cause(caller))
	}

	failed, retries := g.retried(d)
	failed = max(failed, g.failures.take(d.MessageId))
	defer func() {
		anew := g.opts.HandBack && failed >= g.opts.Attempts
		if !anew && (errors.Is(result, ErrHandedBack) || errors.Is(result, ErrLeftUnacked)) {
			g.failures.put(d.MessageId, failed)
		}
	}()
	delays := g.opts.shortDelays()
	copied := false // the broker may have a copy of d
	for {
		last := !g.opts.HandBack && failed+1 >= g.opts.Attempts
		ended, err := attempt(withAttempt(ctx, failed+1, last))
		if err == nil {
			g.count.outcome(ended).Add(1)
			return g.ack(d)
		}
		if errors.As(err, new(*refusal)) {
			return g.giveUp(caller, withAttempt(ctx, failed, true), d, err)
		}
		if caller.Err() != nil { // which may be why the attempt failed
			return g.unfinished(caller, d, fmt.Errorf("%w: %w", context.Cause(caller), err))
		}
		var delay time.Duration
		counted := errors.As(err, new(*handlerError)) && g.counts(err)
		if counted {
			g.count.failedAttempts.Add(1)
			failed++
			if failed >= g.opts.Attempts || permanent(err) {
				return g.giveUp(caller, withAttempt(ctx, failed, true), d, err)
			}
			delay = g.opts.delay(failed)
			delays.Reset()
		} else {
			delay = after(err, delays.NextBackOff)
		}
		if queue, found := g.retryQueue(caller, err, counted, failed, retries); found && !copied {
			failure := g.putAside(ctx, queue, d, failed, retries+1)
			if failure == nil {
				g.log.Warn("attempt failed, trying again later", "message_id", d.MessageId,
					"failed", failed, "of", g.opts.Attempts, "queue", queue.name, "error", err)
				g.count.retriedLater.Add(1)
				return g.ack(d)
			}
			copied = errors.Is(failure, bridge.ErrUnconfirmed) // each further try might leave another copy
		}
		g.log.Warn("attempt failed, trying again", "message_id", d.MessageId,
			"failed", failed, "of", g.opts.Attempts, "delay", delay, "error", err)
		if !pause(caller, delay) {
			return g.unfinished(caller, d, fmt.Errorf("%w: %w", context.Cause(caller), err))
		}
	}
}

// hold returns the two contexts of a delivery that is kept until limit. No attempt begins and no pause goes
// on after caller has ended; the attempt in progress has ctx, which ends Options.Drain later, or as
// the Consumer says. Both end at limit.
func (g *Guard) hold(parent context.Context, limit time.Time) (caller, ctx context.Context, cancel func()) {
	until, cancelUntil, inConsumer := untilStop(parent)
	caller, cancelCaller := context.WithDeadlineCause(until, limit, errHeldTooLong)
	draining, cancelDraining := parent, func() {}
	if !inConsumer {
		draining, cancelDraining = g.draining(caller)
	}
	ctx, cancelCtx := context.WithDeadlineCause(draining, limit, errHeldTooLong)
	return caller, ctx, func() { cancelCtx(); cancelDraining(); cancelCaller(); cancelUntil() }
}

// run runs a handler. Its error is a handlerError.
func (g *Guard) run(key string, fn func() error) error {
	if err := g.contain("handler", key, fn); err != nil {
		return &handlerError{fmt.Errorf("run handler: %w", err)}
	}
	return nil
}
