package consume

import (
	"maps"
	"slices"
	"sync"
)

// A KeyOrder keeps the messages of one ordered queue in order. Each key has a separate order, the
// order in the queue. Only the first message of a key is on its way. The next one follows when the
// broker has the first at its target or in the dead queue, or when the first is dropped.
type KeyOrder struct {
	mu     sync.Mutex
	keys   map[string][]*Place // messages that have not passed, the earliest first
	moving map[*Place]bool     // messages that had their turn and are not done (OrderedQueue)
	closed bool                // no message gets a turn any more: the channel is to be left
}

// A Place is the place of a message in the order of its key. The zero value is in no order.
type Place struct {
	Of any // the message

	order *KeyOrder
	key   string
	ready bool // known to have committed, so it may have its turn
}

func newKeyOrder() *KeyOrder {
	return &KeyOrder{keys: make(map[string][]*Place), moving: make(map[*Place]bool)}
}

// Join appends a message to its key. It must be called in the order of the queue.
func (k *KeyOrder) Join(p *Place, key string, of any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p.Of, p.order, p.key = of, k, key
	k.keys[key] = append(k.keys[key], p)
}

// Ordered reports whether the place is in an order.
func (p *Place) Ordered() bool { return p.order != nil }

// Ready marks a message as committed. It returns true if it is its turn, or if it is in no order;
// otherwise a later call of Passed returns it.
func (p *Place) Ready() bool {
	k := p.order
	if k == nil {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	p.ready = true
	all := k.keys[p.key]
	return len(all) > 0 && all[0] == p && k.turn(p)
}

func (k *KeyOrder) turn(p *Place) bool {
	if k.closed {
		return false
	}
	k.moving[p] = true
	return true
}

// Passed removes a message, so that later messages of its key no longer wait for it. It returns the
// message whose turn has come, or nil.
func (p *Place) Passed() (next any) {
	k := p.order
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.keys[p.key]
	at := slices.Index(all, p)
	if at < 0 { // p has passed before
		return nil
	}
	all = slices.Delete(all, at, at+1)
	if len(all) == 0 {
		delete(k.keys, p.key)
		return nil
	}
	k.keys[p.key] = all
	if next := all[0]; at == 0 && next.ready && k.turn(next) {
		return next.Of
	}
	return nil
}

// Finished notes that a message is done, or stays in its queue.
func (p *Place) Finished() {
	k := p.order
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.moving, p)
}

// Close ends all turns: no further message gets one.
func (k *KeyOrder) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
}

// IsClosed reports whether the channel of the messages was left or is about to be: they come again.
func (k *KeyOrder) IsClosed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.closed
}

// UnderWay returns the messages on their way.
func (k *KeyOrder) UnderWay() []*Place {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.moving))
}

// A WaitingKey is a key with messages that wait for their first one.
type WaitingKey struct {
	Key      string
	First    any // the message that the others wait for
	Messages int // waiting for it
}

// Waiting returns the keys with messages that wait for their first one.
func (k *KeyOrder) Waiting() (out []WaitingKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, all := range k.keys {
		if len(all) > 1 {
			out = append(out, WaitingKey{Key: key, First: all[0].Of, Messages: len(all) - 1})
		}
	}
	return out
}
