package verifier

import (
	"maps"
	"slices"
	"sync"
)

// A line keeps the messages of one ordered queue in order. Each key has a separate order, the order
// in the queue. Only the first message of a key is on its way. The next one follows when the broker
// has the first at its target or in the dead queue, or when the first is dropped.
type line struct {
	mu     sync.Mutex
	keys   map[string][]*message // messages that have not passed, the earliest first
	moving map[*message]bool     // messages that had their turn and are not done, see shard
	closed bool                  // no message gets a turn any more: the channel is to be left
}

func newLine() *line {
	return &line{keys: make(map[string][]*message), moving: make(map[*message]bool)}
}

// join appends a message to its key. It must be called in the order of the queue.
func (l *line) join(m *message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m.line = l
	l.keys[m.staged.OrderKey] = append(l.keys[m.staged.OrderKey], m)
}

// ready marks a message as committed. It returns true if it is its turn; otherwise a later call of
// passed returns it.
func (l *line) ready(m *message) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m.ready = true
	all := l.keys[m.staged.OrderKey]
	return len(all) > 0 && all[0] == m && l.turn(m)
}

func (l *line) turn(m *message) bool {
	if l.closed {
		return false
	}
	l.moving[m] = true
	return true
}

// passed removes m, for which later messages of its key wait no longer. It returns the message
// whose turn has come, if any.
func (l *line) passed(m *message) *message {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := m.staged.OrderKey
	all := l.keys[key]
	at := slices.Index(all, m)
	if at < 0 { // m has passed before
		return nil
	}
	all = slices.Delete(all, at, at+1)
	if len(all) == 0 {
		delete(l.keys, key)
		return nil
	}
	l.keys[key] = all
	if next := all[0]; at == 0 && next.ready && l.turn(next) {
		return next
	}
	return nil
}

// left notes that m is done, or stays in its queue.
func (l *line) left(m *message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.moving, m)
}

// close ends all turns: no further message gets one.
func (l *line) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

func (l *line) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// underWay returns the messages on their way.
func (l *line) underWay() []*message {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.moving))
}

// held returns the keys with messages that wait for their first one.
func (l *line) held(queue string) (out []HeldKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, all := range l.keys {
		if len(all) > 1 {
			out = append(out, HeldKey{Key: key, Queue: queue, ID: all[0].id(), Since: all[0].since(), Messages: len(all) - 1})
		}
	}
	return out
}
