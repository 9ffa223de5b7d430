package pending

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// An Effect happens outside of the database: an e-mail, a payment. Its result decides about the
// message:
//
//	nil             the effect was done
//	NotDone(err)    the effect certainly was not done, and can no longer happen
//	another error   it is unknown: the message is doubtful, as after a panic
//
// It must end when ctx does. Options.EffectTimeout ends ctx; a shutdown does not.
type Effect func(ctx context.Context, d amqp.Delivery) error

type notDoneError struct{ err error }

func (e *notDoneError) Error() string { return e.err.Error() }
func (e *notDoneError) Unwrap() error { return e.err }

// NotDone marks the error of an effect that certainly was not done: the connection was refused, or
// the server rejected the request. The effect may then be tried again. If no retry can help, return
// NotDone(backoff.Permanent(err)).
func NotDone(err error) error {
	if err == nil {
		err = errors.New("not done")
	}
	return &notDoneError{err}
}

var errEffectTimeout = errors.New("effect ran for longer than Options.EffectTimeout")

// errNotBegun: the effect was not begun, because the inbox answered too late.
var errNotBegun = errors.New("the inbox answered after Options.EffectTimeout")

// perform runs the effect of a started message, and records its end. notDone returns the event
// of an effect that certainly was not done.
//
// started is a time before the row was written. The effect's time counts from started, as in the
// database it counts from the row's time: if the answer to the commit came late, another worker may
// be allowed to run the effect by now.
func (e *Effects) perform(ctx context.Context, db *sql.DB, started time.Time, mine driver.Pending, effect Effect, d amqp.Delivery, notDone func(error) event) (engine.Outcome, error) {
	failure := e.runEffect(context.WithoutCancel(ctx), started, mine.Key, effect, d)

	// The result is recorded even if the caller wants to stop, or the effect has exceeded all limits.
	limit := time.Now().Add(e.keys.Opts.ShortDelay())
	if held, _ := ctx.Deadline(); held.After(limit) {
		limit = held
	}
	recording, cancel := context.WithDeadlineCause(context.WithoutCancel(ctx), limit, e.keys.ErrHeldTooLong)
	defer cancel()
	what := unclear
	switch {
	case failure == nil:
		what = done
	case errors.As(failure, new(*notDoneError)):
		what = notDone(failure)
	}
	return e.endRun(recording, db, mine, what, failure)
}

// runEffect runs the effect, unless its time is over.
func (e *Effects) runEffect(ctx context.Context, started time.Time, key string, effect Effect, d amqp.Delivery) error {
	// While a machine is suspended only the wall clock goes on, like the database's.
	now := time.Now()
	if took := max(now.Sub(started), now.Round(0).Sub(started.Round(0))); took >= e.opts.EffectTimeout {
		return NotDone(engine.RetryLater(errNotBegun, 0))
	}
	ctx, end := context.WithDeadlineCause(ctx, started.Add(e.opts.EffectTimeout), errEffectTimeout)
	defer end()
	failure := e.keys.RecoverPanic("effect", key, func() error { return effect(ctx, d) })
	if failure != nil && ctx.Err() != nil {
		failure = fmt.Errorf("%w: %w", context.Cause(ctx), failure)
	}
	return failure
}
