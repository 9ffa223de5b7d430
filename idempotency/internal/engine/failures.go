package engine

import (
	"errors"
	"sync"
	"time"
)

// maxFailures bounds the messages whose failed attempts an Engine remembers, and also the messages
// whose lost connections it remembers.
const maxFailures = 10_000

// A message that has lost survivedLosses connections in a row and for survivedFor, each while the
// database answered on another one, is taken for the cause of further ones. A database may also
// lose the connections that work and still answer a new one, so the time is long.
const (
	survivedLosses = 20
	survivedFor    = time.Hour
)

// A tally is the failed attempts at a message.
type tally struct {
	failed int // attempts that count

	// lost is 0, or one more than the number of messages that the Engine had handled when an attempt
	// last lost its connection.
	lost uint64

	// survived is how many attempts in a row have lost their connection while the database answered
	// on another one, and since is the first of them.
	survived int
	since    time.Time

	// conflicts is how many attempts at a stored message have failed by a deadlock or a similar error.
	conflicts int
}

// A failures counts the failed attempts of messages that were handed back or left unacked before
// their last attempt. Otherwise a handler that takes so long that Options.Hold ends first would fail
// for ever. Of messages in a retry queue, whose copy carries the failed attempts, it has the lost
// connections.
type failures struct {
	mu sync.Mutex
	// By message ID. Messages without an attempt that counts have a map of their own: in an outage
	// they are many, and must not displace the others.
	counted, lost map[string]tally
}

// take removes and returns the tally of a message.
func (f *failures) take(id string) tally {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, all := range [...]map[string]tally{f.counted, f.lost} {
		if t, found := all[id]; found {
			delete(all, id)
			return t
		}
	}
	return tally{}
}

// put stores the tally of a message. If there are too many, it removes another.
func (f *failures) put(id string, t tally) {
	if id == "" || t == (tally{}) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	into := &f.counted
	if t.failed == 0 {
		into = &f.lost
	}
	if *into == nil {
		*into = make(map[string]tally)
	}
	for other := range *into {
		if len(*into) < maxFailures {
			break
		}
		delete(*into, other)
	}
	(*into)[id] = t
}

// ClearFailures removes the tally of a message that is done.
func (e *Engine) ClearFailures(id string) { e.failures.take(id) }

// countsLoss reports whether an attempt counts although its connection was dead after the handler
// had run. It does if the Engine has handled other messages since the message's last lost
// connection: then the database works, and the handler may be the cause. In an outage no message is
// handled, so no attempt counts. It also counts after survivedLosses and survivedFor. An attempt
// that may be committed does not count: the next one finds out, by its claim. An attempt that
// failed otherwise ends the row of lost connections.
func (e *Engine) countsLoss(t *tally, err error) bool {
	lost := new(lostError)
	if !errors.As(err, &lost) || IsLater(err) || excusedByBridge(err) {
		t.survived = 0
		return false
	}
	before := t.lost
	t.lost = e.Count.Handled.Load() + 1
	switch {
	case !lost.answered || lost.commit:
		t.survived = 0
	case t.survived == 0:
		t.survived, t.since = 1, time.Now()
	default:
		t.survived++
	}
	survived := t.survived > survivedLosses && time.Since(t.since) >= survivedFor
	return !lost.commit && (before > 0 && t.lost > before || survived)
}

// CountsLoss is countsLoss for a stored message. A COMMIT without an answer counts too: the caller
// records the failed attempt in the message's row, which is gone if the COMMIT has succeeded.
// answers reports whether the database has answered since on another connection.
func (e *Engine) CountsLoss(id string, err error, answers bool) bool {
	t := e.failures.take(id)
	defer func() { e.failures.put(id, t) }()
	if lost := new(lostError); errors.As(err, &lost) {
		err = &lostError{err: lost.err, answered: lost.answered || answers}
	}
	return e.countsLoss(&t, err)
}

// ExcusedPause returns the pause after an attempt at a stored message that does not count. After a
// deadlock or a failed serialization the next attempt may succeed at once, so these pauses grow.
func (e *Engine) ExcusedPause(id string, err error) time.Duration {
	if IsLater(err) || !e.txs.Transient(err) {
		return after(err, e.Opts.ShortDelay)
	}
	t := e.failures.take(id)
	t.conflicts++
	e.failures.put(id, t)
	return min(e.Opts.Delay(t.conflicts), e.Opts.ShortDelay())
}
