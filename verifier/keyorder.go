package verifier

import (
	"maps"
	"slices"
	"sync"
)

// A keyOrder keeps the messages of one ordered queue in order. Each key has a separate order, the
// order in the queue. Only the first message of a key is on its way. The next one follows when the
// broker has the first at its target or in the dead queue, or when the first is dropped.
type keyOrder struct {
	mu     sync.Mutex
	keys   map[string][]*message // messages that have not passed, the earliest first
	moving map[*message]bool     // messages that had their turn and are not done, see shard
	closed bool                  // no message gets a turn any more: the channel is to be left
}

func newKeyOrder() *keyOrder {
	return &keyOrder{keys: make(map[string][]*message), moving: make(map[*message]bool)}
}

// join appends a message to its key. It must be called in the order of the queue.
func (k *keyOrder) join(m *message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m.keyOrder = k
	k.keys[m.staged.OrderKey] = append(k.keys[m.staged.OrderKey], m)
}

// ready marks a message as committed. It returns true if it is its turn; otherwise a later call of
// passed returns it.
func (k *keyOrder) ready(m *message) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	m.ready = true
	all := k.keys[m.staged.OrderKey]
	return len(all) > 0 && all[0] == m && k.turn(m)
}

func (k *keyOrder) turn(m *message) bool {
	if k.closed {
		return false
	}
	k.moving[m] = true
	return true
}

// passed removes m, for which later messages of its key wait no longer. It returns the message
// whose turn has come, if any.
func (k *keyOrder) passed(m *message) *message {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := m.staged.OrderKey
	all := k.keys[key]
	at := slices.Index(all, m)
	if at < 0 { // m has passed before
		return nil
	}
	all = slices.Delete(all, at, at+1)
	if len(all) == 0 {
		delete(k.keys, key)
		return nil
	}
	k.keys[key] = all
	if next := all[0]; at == 0 && next.ready && k.turn(next) {
		return next
	}
	return nil
}

// finished notes that m is done, or stays in its queue.
func (k *keyOrder) finished(m *message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.moving, m)
}

// close ends all turns: no further message gets one.
func (k *keyOrder) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
}

func (k *keyOrder) isClosed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.closed
}

// underWay returns the messages on their way.
func (k *keyOrder) underWay() []*message {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.moving))
}

// held returns the keys with messages that wait for their first one.
func (k *keyOrder) held(queue string) (out []WaitingKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, all := range k.keys {
		if len(all) > 1 {
			out = append(out, WaitingKey{Key: key, Queue: queue, ID: all[0].id(), Since: all[0].since(), Messages: len(all) - 1})
		}
	}
	return out
}
