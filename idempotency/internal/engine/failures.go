package engine

import (
	"errors"
	"sync"
)

// maxFailures bounds the messages whose failed attempts an Engine remembers, and also the messages
// whose lost connections it remembers.
const maxFailures = 10_000

// lostEnough is the number of connections that a message loses in a row, each while the database
// answers on another one, after which further ones count. No outage of a database looks like that
// for minutes.
const lostEnough = 20

// A tally is the failed attempts at a message.
type tally struct {
	failed int // attempts that count

	// lost is 0, or one more than the number of messages that the Engine had handled when an attempt
	// last lost its connection.
	lost uint64

	// answered is how many attempts in a row have lost their connection while the database answered
	// on another one.
	answered int
}

// A failures counts the failed attempts of messages that were handed back or left unacked before
// their last attempt. Otherwise a handler that takes so long that Options.Hold ends first would fail
// for ever.
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
// handled, so no attempt counts. It also counts if more than lostEnough attempts in a row have lost
// their connection while the database answered on another one. An attempt that may be committed does
// not count: the next one finds out, by its claim.
func (e *Engine) countsLoss(t *tally, err error) bool {
	lost := new(lostError)
	if !errors.As(err, &lost) || IsLater(err) {
		return false
	}
	before := t.lost
	t.lost = e.Count.Handled.Load() + 1
	t.answered++
	if !lost.answered || lost.commit {
		t.answered = 0
	}
	return !lost.commit && (before > 0 && t.lost > before || t.answered > lostEnough)
}

// CountsLoss is countsLoss for a message outside of a delivery.
func (e *Engine) CountsLoss(id string, err error) bool {
	t := e.failures.take(id)
	defer func() { e.failures.put(id, t) }()
	return e.countsLoss(&t, err)
}
