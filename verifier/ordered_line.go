package verifier

import (
	"maps"
	"slices"
	"sync"
)

// A line has the messages of one ordered queue wait for their turn. Each key has its own
// order, that of the queue. Only the first message of a key is on its way, and the next one
// follows when it has passed: when the broker has it at the target or in the dead queue, or
// when it is dropped.
type line struct {
	mu     sync.Mutex
	keys   map[string][]*message // those that have not passed, the first first
	moving map[*message]bool     // those that had their turn and are not done, see shard
	closed bool                  // nobody gets a turn any more: the channel is to be left
}

func newLine() *line {
	return &line{keys: make(map[string][]*message), moving: make(map[*message]bool)}
}

// join puts a message behind those of its key. It must be called in the order of the queue.
func (l *line) join(m *message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m.line = l
	l.keys[m.staged.OrderKey] = append(l.keys[m.staged.OrderKey], m)
}

// ready says that a message may be forwarded. It returns true if it is its turn, else
// somebody will get it from passed.
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

// passed says that nobody waits for m any more. It returns the message whose turn has come,
// if any.
func (l *line) passed(m *message) *message {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := m.staged.OrderKey
	all := l.keys[key]
	at := slices.Index(all, m)
	if at < 0 { // it has passed before
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

// left says that m is done, or stays where it is.
func (l *line) left(m *message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.moving, m)
}

// close lets nobody else have a turn.
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

// underWay lists the messages that are on their way.
func (l *line) underWay() []*message {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.moving))
}

// held lists the keys whose messages wait for the first one.
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
