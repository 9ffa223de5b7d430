package engine

import "sync"

// maxFailures is how many messages an Engine remembers the failed attempts of.
const maxFailures = 10_000

// A failures remembers how often messages failed that were handed back before their last attempt,
// because Options.Hold ended: else a handler that takes long would fail for ever.
type failures struct {
	mu    sync.Mutex
	count map[string]int // by message ID
}

// take returns and forgets the count of a message.
func (f *failures) take(id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.count[id]
	delete(f.count, id)
	return n
}

// put remembers the count of a message. If there are too many, it forgets another.
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

// Forget forgets the failed attempts of a message that is done.
func (e *Engine) Forget(id string) { e.failures.take(id) }
