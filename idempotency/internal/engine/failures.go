package engine

import "sync"

// maxFailures bounds the messages whose failed attempts an Engine remembers.
const maxFailures = 10_000

// A tally is the failed attempts at a message.
type tally struct {
	failed int // attempts that count

	// lost is 0, or one more than the number of messages that the Engine had handled when an attempt
	// last lost its connection.
	lost uint64
}

// A failures counts the failed attempts of messages that were handed back or left unacked before
// their last attempt. Otherwise a handler that takes so long that Options.Hold ends first would fail
// for ever.
type failures struct {
	mu  sync.Mutex
	all map[string]tally // by message ID
}

// take removes and returns the tally of a message.
func (f *failures) take(id string) tally {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.all[id]
	delete(f.all, id)
	return t
}

// put stores the tally of a message. If there are too many, it removes another.
func (f *failures) put(id string, t tally) {
	if id == "" || t == (tally{}) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = make(map[string]tally)
	}
	for other := range f.all {
		if len(f.all) < maxFailures {
			break
		}
		delete(f.all, other)
	}
	f.all[id] = t
}

// Forget removes the tally of a message that is done.
func (e *Engine) Forget(id string) { e.failures.take(id) }

// countsLoss reports whether an attempt counts although its connection was dead after the handler
// had run. It does if the Engine has handled other messages since the message's last lost
// connection: then the database works, and the handler may be the cause. In an outage no message is
// handled, so no attempt counts. An attempt that may be committed does not count: the next one finds
// out, by its claim.
func (e *Engine) countsLoss(t *tally, err error) bool {
	if !IsLost(err) || IsLater(err) {
		return false
	}
	before := t.lost
	t.lost = e.Count.Handled.Load() + 1
	return before > 0 && t.lost > before && !mayBeCommitted(err)
}

// CountsLoss is countsLoss for a message outside of a delivery.
func (e *Engine) CountsLoss(id string, err error) bool {
	t := e.failures.take(id)
	defer func() { e.failures.put(id, t) }()
	return e.countsLoss(&t, err)
}
