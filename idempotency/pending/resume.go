package pending

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// An Answer is the result of Options.FindOut.
type Answer int

const (
	Unknown      Answer = iota // ask again later
	Happened                   // the effect was done
	DidNotHappen               // the effect was not done, and can no longer happen
)

// Resume handles the messages that AtMostOnce has left in the inbox, until ctx ends, and then
// returns nil. It runs effect for the messages that are to be tried again (see Retry), and calls
// Options.FindOut for the doubtful ones. Run it beside the consumers, in one process or in several;
// each message is taken by one of them. An effect that is NotDone is tried again with pauses,
// Options.Attempts times in all. Then the message is Failed, and waits for an operator. Resume
// looks for work every Options.Poll.
//
// Resume starts a message as AtMostOnce does: a crash leaves it started, and then doubtful. When
// ctx ends, an effect that has begun may finish.
func (e *Effects) Resume(ctx context.Context, db *sql.DB, effect Effect) error {
	if db == nil || effect == nil {
		panic("pending: Resume needs a database and an effect")
	}
	// Ready messages do not wait for the pauses after a failed question.
	delays, nextQuestion := e.keys.Opts.ShortDelays(), time.Time{}
	return e.poll(ctx, func(ctx context.Context) (bool, error) {
		asked := false
		if !time.Now().Before(nextQuestion) {
			var err error
			if asked, err = e.ask(ctx, db); err == nil {
				delays.Reset()
			} else if ctx.Err() == nil {
				delay := delays.NextBackOff()
				nextQuestion = time.Now().Add(delay)
				e.keys.Log.Warn("cannot resolve doubtful messages; retrying", "retry_in", delay, "error", err)
			}
		}
		resumed, err := e.resume(ctx, db, effect)
		return asked || resumed, err
	})
}

// resume runs the effect of one ready message, and reports whether there was one.
func (e *Effects) resume(ctx context.Context, db *sql.DB, effect Effect) (bool, error) {
	started := time.Now()
	mine, err := e.take(ctx, db, begun)
	if err != nil || mine == nil {
		return false, err
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), e.keys.Opts.Hold, e.keys.ErrHeldTooLong)
	defer cancel()
	d, err := engine.DecodeMessage(mine.Message)
	if err != nil {
		_, err = e.endRun(ctx, db, *mine, failed, fmt.Errorf("%w: %w", errUnreadable, err))
		return true, err
	}
	ctx = engine.WithAttempt(ctx, mine.Attempts, mine.Attempts >= e.keys.Opts.Attempts)
	ended, err := e.perform(ctx, db, started, *mine, effect, d, e.blamed)
	if err == nil {
		e.keys.Count.Of(ended).Add(1)
	}
	return true, err
}

// ask calls FindOut for one doubtful message, and reports whether there was one.
func (e *Effects) ask(ctx context.Context, db *sql.DB) (bool, error) {
	var found *driver.Pending
	err := engine.InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		if _, err = e.inbox.DoubtOverdue(ctx, tx, e.keys.Consumer); err != nil || e.opts.FindOut == nil {
			return err
		}
		if found, err = e.inbox.TakePending(ctx, tx, e.keys.Consumer, driver.Doubtful); err != nil || found == nil {
			return err
		}
		_, err = e.advance(ctx, tx, *found, e.transition(*found, asked, nil))
		return err
	})
	if err != nil || found == nil {
		return false, err
	}
	answer := Unknown
	err = e.keys.RecoverPanic("Options.FindOut", found.Key, func() (err error) {
		p, err := newMessage(*found)
		if err != nil {
			return err
		}
		answer, err = e.opts.FindOut(ctx, p)
		return err
	})
	if err != nil {
		return true, fmt.Errorf("find out about message %q: %w", found.Key, err)
	}
	switch answer {
	case Happened:
		return true, e.resolve(ctx, db, *found, done)
	case DidNotHappen:
		return true, e.resolve(ctx, db, *found, again)
	default:
		return true, nil
	}
}
