package engine

import "sync"

// maxFailures bounds the messages whose failed attempts an Engine remembers.
const maxFailures = 10_000

// A failures counts the failed attempts of messages that were handed back or left unacked before
// their last attempt. Otherwise a handler that takes so long that Options.Hold ends first would fail
// for ever.
type failures struct {
	mu    sync.Mutex
	count map[string]int // by message ID
}

// take removes and returns the count of a message.
func (f *failures) take(id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.count[id]
	delete(f.count, id)
	return n
}

// put stores the count of a message. If there are too many, it removes another.
func (f *failures) put(id string, n int) {
	if id == "" || n == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count == nil {
		f.count = make(map[string]int)
	}
	for other := range f.count {
		if len(f.count) < maxFailures {
			break
		}
		delete(f.count, other)
	}
	f.count[id] = n
}

// Forget removes the count of a message that is done.
func (e *Engine) Forget(id string) { e.failures.take(id) }
