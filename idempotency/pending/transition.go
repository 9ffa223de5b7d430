package pending

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// An ending is the end of a run of a pending message, or a doubt about it.
//
//	done         the row is deleted
//	released     the row and the claim are deleted, and the delivery is tried again; if another delivery
//	             has attached the message to the row, and was acked, the row is ready after a pause
//	unclear      the row is doubtful, with the message
//	failed       the row is ready after a pause; after the last attempt it is failed
//	interrupted  the row is ready at once, and the attempt does not count
//	again        the row is ready at once, with all attempts
type ending int

const (
	done        ending = iota // the message is handled, its effect was done, or an operator says so
	released                  // of AtMostOnce: its effect certainly was not done
	unclear                   // it is unknown whether its effect was done
	failed                    // of Work and Resume: an attempt failed
	interrupted               // of Work: the message is not to blame for the failure
	again                     // an operator, or FindOut, says that its effect was not done
)

// A change is the next state of a row. Only the run of the row can write it.
type change struct {
	remove  bool           // delete the row
	unclaim bool           // delete the row with its claim, if no message is attached
	next    driver.Pending // otherwise
	due     time.Duration  // pause from now, by the database's clock
}

// transition returns the change of mine for an ending. All transitions are defined here.
func (g *Guard) transition(mine driver.Pending, how ending, cause error) change {
	c := change{next: driver.Pending{Key: mine.Key, State: driver.Ready, Run: uuid.NewString(), Attempts: mine.Attempts, Error: mine.Error}}
	if cause != nil {
		c.next.Error = cause.Error()
	}
	switch how {
	case done:
		c.remove = true
	case released:
		c.unclaim, c.due = true, g.keys.Opts.Delay(mine.Attempts)
	case unclear:
		c.next.State, c.next.Message = driver.Doubtful, mine.Message
		c.next.Run = mine.Run // the run may still record how its effect ended
	case failed:
		if g.keys.Counts(cause) {
			c.due = g.keys.Opts.Delay(mine.Attempts)
		} else {
			c.next.Attempts--
			c.due = engine.After(cause, g.keys.Opts.ShortDelay)
		}
		if c.next.Attempts >= g.keys.Opts.Attempts || engine.Permanent(cause) {
			c.next.State, c.due = driver.Failed, 0
		}
	case interrupted:
		c.next.Attempts--
	case again:
		c.next.Attempts = 0
	}
	return c
}

// write writes a change of mine. It reports whether the row still belonged to that run, and whether
// it stays.
func (g *Guard) write(ctx context.Context, tx bridge.Tx, mine driver.Pending, c change) (found, stays bool, err error) {
	inbox, consumer := g.keys.Inbox, g.keys.Consumer
	if c.remove {
		found, err = inbox.RemovePending(ctx, tx, consumer, mine.Key, mine.Run)
		return found, false, err
	}
	if c.unclaim {
		found, err = inbox.RemoveBarePending(ctx, tx, consumer, mine.Key, mine.Run)
		if err == nil && found {
			err = inbox.Unclaim(ctx, tx, consumer, mine.Key)
		}
		if err != nil || found {
			return found, false, err
		}
	}
	found, err = inbox.ChangePending(ctx, tx, consumer, mine.Run, c.next, c.due)
	return found, found, err
}

// end records the end of a run of mine, and retries until ctx ends. It returns the outcome of the
// delivery.
func (g *Guard) end(ctx context.Context, db *sql.DB, mine driver.Pending, how ending, cause error) (engine.Outcome, error) {
	c := g.transition(mine, how, cause)
	switch {
	case how == unclear:
		g.keys.Log.Error("unknown whether the effect completed", "message_id", mine.Key, "error", cause)
	case how == failed && c.next.State == driver.Failed:
		g.keys.Log.Error("message failed", "message_id", mine.Key, "attempts", mine.Attempts, "error", cause)
	case how == failed:
		g.keys.Log.Warn("attempt failed, trying again", "message_id", mine.Key,
			"failed", c.next.Attempts, "of", g.keys.Opts.Attempts, "delay", c.due, "error", cause)
	}
	if how == failed && g.keys.Counts(cause) {
		g.keys.Count.FailedAttempts.Add(1)
	}
	var found, stays bool
	err := g.record(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		found, stays, err = g.write(ctx, tx, mine, c)
		return err
	})
	switch {
	case err != nil:
		return engine.Unfinished, err
	case how == done:
		if !found {
			g.keys.Log.Warn("effect completed, but its row was removed or taken over", "message_id", mine.Key)
		}
		return engine.Handled, nil
	case how == unclear:
		return engine.Doubtful, nil
	case how == released && !stays:
		return engine.Unfinished, engine.Failure(fmt.Errorf("run effect: %w", cause))
	default:
		return engine.Kept, nil
	}
}

// resolve ends a message that no run has, unless its row has changed since it was read.
func (g *Guard) resolve(ctx context.Context, db *sql.DB, mine driver.Pending, how ending) error {
	var found bool
	err := engine.InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		found, _, err = g.write(ctx, tx, mine, g.transition(mine, how, nil))
		return err
	})
	if err == nil && !found {
		return ErrNotPending
	}
	if err == nil {
		g.signal()
	}
	return err
}

// record commits the changes of fn, and retries until it succeeds or ctx ends. fn may run again
// after a commit whose answer was lost.
func (g *Guard) record(ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx bridge.Tx) error) error {
	return g.recordUntil(ctx, ctx, db, fn)
}

// recordUntil is record without retries after until has ended.
func (g *Guard) recordUntil(until, ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx bridge.Tx) error) error {
	delays := g.keys.Opts.ShortDelays()
	for {
		err := engine.InOwnTx(ctx, db, fn)
		if err == nil || engine.IsRefusal(err) {
			return err
		}
		if until.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(until), err)
		}
		delay := delays.NextBackOff()
		g.keys.Log.Warn("cannot write to the inbox; retrying", "delay", delay, "error", err)
		if !engine.Pause(until, delay) {
			return fmt.Errorf("%w: %w", context.Cause(until), err)
		}
	}
}

// errAgain ends a transaction if another one committed between two of its statements.
var errAgain = errors.New("the message's row has changed meanwhile")

// expectChanged returns an error if a change found another row than expected.
func expectChanged(changed bool, err error) error {
	if err == nil && !changed {
		return errAgain
	}
	return err
}
