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

// An event changes the row of a pending message:
//
//	event        state before    state                          due                   attempts  run
//	begun        none, ready     started                        2 × EffectTimeout     one more  new
//	leased       ready           ready, or failed if none left  5/4 × Lease, or now   one more  new
//	asked        doubtful        doubtful                       short pause           same      same
//	done         any             no row
//	released     started         no row and no claim            the delivery goes on
//	             ..., attached   ready                          pause                 same      new
//	unclear      started         doubtful, with the message     now                   same      same
//	failed       started, ready  ready, or failed if none left  pause, or now         same      new
//	excused      started, ready  ready                          pause                 one less  new
//	interrupted  ready           ready                          now                   one less  new
//	again        all but started ready                          now                   0         new
//
// 'Attached' means that another delivery has attached the message to the row, and was acked. A
// started row that is due becomes doubtful by DoubtOverdue, in the database. A row changes only if
// its run is still the run that the event was decided for, so the state before is still true. An
// unclear and an asked row keep their run, which may still record how its effect ended.
type event int

const (
	begun       event = iota // of AtMostOnce and Resume: an effect begins
	leased                   // of Work: an attempt begins
	asked                    // of Resume: FindOut is asked
	done                     // the message is handled, its effect was done, or an operator says so
	released                 // of AtMostOnce: its effect certainly was not done
	unclear                  // it is unknown whether its effect was done
	failed                   // of Work and Resume: an attempt failed, and counts
	excused                  // of Work and Resume: an attempt failed, and does not count
	interrupted              // of Work: the database failed, or the worker stops; the worker pauses, not the message
	again                    // an operator, or FindOut, says that its effect was not done
)

// A change is the next state of a row. Only the run of the row can write it.
type change struct {
	remove  bool           // delete the row
	unclaim bool           // delete the row with its claim, if no message is attached
	next    driver.Pending // otherwise; without a message, which then stays
	due     time.Duration  // pause from now, by the database's clock
}

// transition returns the change of mine by an event.
func (m *messages) transition(mine driver.Pending, what event, cause error) change {
	c := change{next: driver.Pending{Key: mine.Key, State: driver.Ready, Run: uuid.NewString(), Attempts: mine.Attempts, Error: mine.Error}}
	if cause != nil {
		c.next.Error = cause.Error()
	}
	switch what {
	case begun:
		c.next.State, c.due = driver.Started, m.hold
		c.next.Attempts++
	case leased:
		if mine.Attempts >= m.keys.Opts.Attempts {
			c.next.State, c.next.Error = driver.Failed, unheard(mine)
			break
		}
		c.due = m.hold
		c.next.Attempts++
	case asked:
		c.next.State, c.next.Run, c.due = driver.Doubtful, mine.Run, m.keys.Opts.ShortDelay()
	case done:
		c.remove = true
	case released:
		c.unclaim, c.due = true, m.keys.Opts.Delay(mine.Attempts)
	case unclear:
		c.next.State, c.next.Run, c.next.Message = driver.Doubtful, mine.Run, mine.Message
	case failed:
		c.due = m.keys.Opts.Delay(mine.Attempts)
		if mine.Attempts >= m.keys.Opts.Attempts || engine.Permanent(cause) {
			c.next.State, c.due = driver.Failed, 0
		}
	case excused:
		c.next.Attempts--
		c.due = m.keys.ExcusedPause(mine.Key, cause)
	case interrupted:
		c.next.Attempts--
	case again:
		c.next.Attempts = 0
	}
	return c
}

// blamed returns failed, or excused if the message is not the cause.
func (m *messages) blamed(cause error) event {
	if m.keys.Counts(cause) {
		return failed
	}
	return excused
}

// unheard returns the error of a message whose last attempt has recorded no result.
func unheard(mine driver.Pending) string {
	text := fmt.Sprintf("attempt %d recorded no result: its worker died, or could not reach the database", mine.Attempts)
	if mine.Error != "" {
		text += "; the error before: " + mine.Error
	}
	return text
}

// advance writes a change of mine after which the row stays, and returns the row with its message.
func (m *messages) advance(ctx context.Context, tx bridge.Tx, mine driver.Pending, c change) (driver.Pending, error) {
	found, _, err := m.write(ctx, tx, mine, c)
	if err == nil && !found {
		err = errAgain
	}
	next := c.next
	next.Message = mine.Message
	return next, err
}

// write writes a change of mine. It reports whether the row still belonged to that run, and whether
// it stays.
func (m *messages) write(ctx context.Context, tx bridge.Tx, mine driver.Pending, c change) (found, stays bool, err error) {
	inbox, consumer := m.inbox, m.keys.Consumer
	if c.remove {
		found, err = inbox.RemovePending(ctx, tx, consumer, mine.Key, mine.Run)
		return found, false, err
	}
	if c.unclaim {
		found, err = inbox.ReleasePending(ctx, tx, consumer, mine.Key, mine.Run)
		if err != nil || found {
			return found, false, err
		}
	}
	found, err = inbox.ChangePending(ctx, tx, consumer, mine.Run, c.next, c.due)
	return found, found, err
}

// take takes the ready message that has been due for longest, for an event that begins a run. It
// returns nil if there is none.
func (m *messages) take(ctx context.Context, db *sql.DB, what event) (mine *driver.Pending, err error) {
	err = engine.InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) error {
		found, err := m.inbox.TakePending(ctx, tx, m.keys.Consumer, driver.Ready)
		if err != nil || found == nil {
			return err
		}
		taken, err := m.advance(ctx, tx, *found, m.transition(*found, what, nil))
		mine = &taken
		return err
	})
	if err != nil {
		return nil, err
	}
	return mine, nil
}

// endRun writes an event that ends a run of mine, and retries until ctx ends. It returns the outcome
// of the delivery.
func (m *messages) endRun(ctx context.Context, db *sql.DB, mine driver.Pending, what event, cause error) (engine.Outcome, error) {
	c := m.transition(mine, what, cause)
	if what == unclear {
		m.keys.Log.Error("unknown whether the effect completed", "message_id", mine.Key, "error", cause)
	}
	var found, stays bool
	ours := false // in one of the transactions the row belonged to the run
	err := m.commit(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		found, stays, err = m.write(ctx, tx, mine, c)
		ours = ours || found
		return err
	})
	m.report(mine, what, c, cause, err != nil || ours)
	switch {
	case err != nil:
		return engine.Unfinished, err
	case what == done:
		if !found {
			m.keys.Log.Warn("effect completed, but its row was removed or taken over", "message_id", mine.Key)
		}
		return engine.Handled, nil
	case what == unclear:
		return engine.Doubtful, nil
	case what == released && !stays:
		return engine.Unfinished, engine.Failure(fmt.Errorf("run effect: %w", cause))
	default:
		return engine.Kept, nil
	}
}

// report logs and counts an attempt that has failed. If its row was gone before the result was
// recorded, a COMMIT without an answer may have succeeded.
func (m *messages) report(mine driver.Pending, what event, c change, cause error, recorded bool) {
	switch {
	case what != failed && what != excused:
		return
	case !recorded:
		m.keys.Log.Warn("result of the attempt not recorded: its row was removed or taken over", "message_id", mine.Key,
			"attempts", mine.Attempts, "error", cause)
	case c.next.State == driver.Failed:
		m.keys.Log.Error("message failed", "message_id", mine.Key, "attempts", mine.Attempts, "error", cause)
	default:
		m.keys.Log.Warn("attempt failed, trying again", "message_id", mine.Key,
			"failed", c.next.Attempts, "of", m.keys.Opts.Attempts, "retry_in", c.due, "error", cause)
	}
	if what == failed && (recorded || !engine.MayBeCommitted(cause)) {
		m.keys.Count.FailedAttempts.Add(1)
	}
}

// resolve ends a message that no run has, unless its row has changed since it was read.
func (m *messages) resolve(ctx context.Context, db *sql.DB, mine driver.Pending, what event) error {
	var found bool
	err := engine.InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		found, _, err = m.write(ctx, tx, mine, m.transition(mine, what, nil))
		return err
	})
	if err == nil && !found {
		return ErrNotPending
	}
	if err == nil {
		m.signal()
	}
	return err
}

// commit commits the changes of fn, and retries until it succeeds or ctx ends. fn may run again
// after a commit whose answer was lost.
func (m *messages) commit(ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx bridge.Tx) error) error {
	return m.commitUntil(ctx, ctx, db, fn)
}

// commitUntil is commit without retries after until has ended.
func (m *messages) commitUntil(until, ctx context.Context, db *sql.DB, fn func(ctx context.Context, tx bridge.Tx) error) error {
	delays := m.keys.Opts.ShortDelays()
	for {
		err := engine.InOwnTx(ctx, db, fn)
		if err == nil || engine.IsRefusal(err) {
			return err
		}
		if until.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(until), err)
		}
		delay := delays.NextBackOff()
		m.keys.Log.Warn("cannot write to the inbox; retrying", "retry_in", delay, "error", err)
		if !engine.Pause(until, delay) {
			return fmt.Errorf("%w: %w", context.Cause(until), err)
		}
	}
}

// errAgain ends a transaction if another one committed between two of its statements.
var errAgain = errors.New("the message's row has changed meanwhile")

// expectChanged returns errAgain if a statement found another row than expected.
func expectChanged(changed bool, err error) error {
	if err == nil && !changed {
		return errAgain
	}
	return err
}
