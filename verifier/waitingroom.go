package verifier

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

const (
	// slowAge is the age from which a message counts as slow: most transactions end soon after they
	// have staged.
	slowAge = 100 * time.Millisecond
	// slowLook is the time between lookups of slow messages. Each lookup costs a probe per message, so
	// with many open transactions more frequent ones would slow down all messages.
	slowLook = 100 * time.Millisecond
	// idlersGather is the time between lookups of waiting messages that no settler has time for.
	idlersGather = 8 * time.Millisecond
	// slowShare is how many slow messages are looked up together, so that no other message waits for a
	// long lookup.
	slowShare = 100
)

// A waitingRoom holds messages whose transaction was open, or looked rolled back without evidence,
// at their last lookup. It is bounded: messages that exceed its limit, or have been in it for too
// long, are set aside (waitLimits).
//
// A message in the room is either idle, or busy: in a lookup, or with a settler that waits for its
// transaction. A busy message has no other judge meanwhile.
type waitingRoom struct {
	settling atomic.Int64 // lookups that wait in the database

	mu       sync.Mutex
	fresh    *list.List // idle
	slow     *list.List // idle, was still open after slowAge or after a settler's wait
	withheld *list.List // idle, looks rolled back: waits for evidence
	all      *list.List // of *waiter, by arrival
	waiters  map[*message]*waiter

	evident      bool // there is evidence: no message is withheld any more
	ordered      int  // messages among all that must keep their order and are never set aside
	slowSettling int
	slowLimit    int           // most settlers that wait for slow messages at the same time
	slowDue      time.Time     // when the next share of the slow messages is to be looked up again
	slowAll      bool          // all slow messages are to be looked up, at once
	settlable    chan struct{} // woken when a settler may find a message
	lookNow      chan struct{} // woken when a transaction has ended: others may share its fate
}

type waiter struct {
	m       *message
	slow    bool
	in      *list.List    // fresh, slow or withheld
	idle    *list.Element // its place in that list; nil while busy
	arrival *list.Element
}

func newWaitingRoom(settlers int) *waitingRoom {
	return &waitingRoom{
		fresh:     list.New(),
		slow:      list.New(),
		withheld:  list.New(),
		all:       list.New(),
		waiters:   make(map[*message]*waiter),
		slowLimit: max(1, settlers/2),
		settlable: make(chan struct{}, 1),
		lookNow:   make(chan struct{}, 1),
	}
}

// enter adds messages. They are slow if they have waited before.
func (r *waitingRoom) enter(slow bool, messages ...*message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range messages {
		w := &waiter{m: m, slow: slow}
		w.arrival = r.all.PushBack(w)
		if m.place.Ordered() {
			r.ordered++
		}
		r.waiters[m] = w
		r.makeIdle(w)
	}
}

func (r *waitingRoom) makeIdle(w *waiter) {
	w.in = r.fresh
	if w.slow {
		w.in = r.slow
	}
	w.idle = w.in.PushBack(w)
	pipe.Wake(r.settlable)
}

// takeIdle makes a waiter busy and returns its message.
func (r *waitingRoom) takeIdle(w *waiter) *message {
	w.in.Remove(w.idle)
	w.in, w.idle = nil, nil
	return w.m
}

// next waits for a message to settle; nil when ctx ends. The settler owns the message until it
// calls waited or withhold.
func (r *waitingRoom) next(ctx context.Context) (m *message, slow bool) {
	for {
		if m, slow = r.pick(); m != nil {
			return m, slow
		}
		select {
		case <-r.settlable:
		case <-ctx.Done():
			return nil, false
		}
	}
}

func (r *waitingRoom) pick() (m *message, slow bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var front *list.Element
	if front = r.fresh.Front(); front == nil && r.slowSettling < r.slowLimit {
		front = r.slow.Front()
	}
	if front == nil {
		return nil, false
	}
	w := front.Value.(*waiter)
	if w.slow {
		r.slowSettling++
	}
	if r.fresh.Len()+r.slow.Len() > 1 {
		pipe.Wake(r.settlable) // for the next settler
	}
	return r.takeIdle(w), w.slow
}

// waited ends a settler's wait for m: m stays, as a slow one, or it leaves.
func (r *waitingRoom) waited(m *message, stays bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.waiters[m]
	if w.slow {
		r.slowSettling--
	}
	if stays {
		w.slow = true
		r.makeIdle(w)
		return
	}
	r.remove(w)
	pipe.Wake(r.settlable)
	r.transactionEnded(w)
}

// withhold ends a settler's wait for m, which looks rolled back: m stays, and is neither settled
// nor looked up again before release.
func (r *waitingRoom) withhold(m *message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.waiters[m]
	if w.slow {
		r.slowSettling--
	}
	w.slow = true
	if r.evident { // evidence was found meanwhile
		r.makeIdle(w)
		return
	}
	m.withheld = true
	w.in = r.withheld
	w.idle = w.in.PushBack(w)
	pipe.Wake(r.settlable)
}

// release returns withheld messages to the idle ones, because there is evidence.
func (r *waitingRoom) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.evident = true
	for r.withheld.Len() > 0 {
		w := r.withheld.Front().Value.(*waiter)
		r.takeIdle(w).withheld = false
		r.makeIdle(w)
	}
}

// countWithheld counts the messages that wait for evidence.
func (r *waitingRoom) countWithheld() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.withheld.Len()
}

// transactionEnded requests an immediate lookup of messages that may belong to the same transaction
// as w. If the transaction was open for long, all its messages are slow.
func (r *waitingRoom) transactionEnded(w *waiter) {
	if w.slow {
		r.slowAll = true
	}
	if r.fresh.Len() > 0 || w.slow && r.slow.Len() > 0 {
		pipe.Wake(r.lookNow)
	}
}

func (r *waitingRoom) remove(w *waiter) {
	r.all.Remove(w.arrival)
	if w.m.place.Ordered() {
		r.ordered--
	}
	delete(r.waiters, w.m)
}

// lookAgain returns at most limit idle messages for another lookup: the messages that are not slow,
// and slow ones if their lookup is due; of each kind first the messages whose last lookup is
// longest ago. Each must be returned through looked.
func (r *waitingRoom) lookAgain(now time.Time, limit int) []*message {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*message
	take := func(idle *list.List, limit int) {
		for ; limit > 0 && idle.Len() > 0; limit-- {
			out = append(out, r.takeIdle(idle.Front().Value.(*waiter)))
		}
	}
	take(r.fresh, limit)
	switch left := limit - len(out); {
	case r.slowAll:
		take(r.slow, left)
	case !now.Before(r.slowDue):
		shares := max(1, (r.slow.Len()+slowShare-1)/slowShare)
		r.slowDue = now.Add(slowLook / time.Duration(shares))
		take(r.slow, min(slowShare, left))
	}
	r.slowAll = false
	return out
}

// looked ends another lookup of m: if m was found, it leaves; otherwise it goes on waiting.
func (r *waitingRoom) looked(m *message, found bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.waiters[m]; found {
		r.remove(w)
		r.transactionEnded(w)
	} else {
		w.slow = w.slow || now.Sub(m.received) >= slowAge
		r.makeIdle(w)
	}
}

// idlers returns a timer for the next lookup while there are waiting messages that no settler has.
func (r *waitingRoom) idlers() <-chan time.Time {
	wait, some := r.nextLook(time.Now())
	if !some {
		return nil
	}
	return time.After(wait)
}

// nextLook returns the time until the next lookup of idle messages; false if none is idle.
func (r *waitingRoom) nextLook(now time.Time) (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.fresh.Len() > 0:
		return idlersGather, true
	case r.slow.Len() > 0:
		if r.slowAll {
			return idlersGather, true
		}
		return max(idlersGather, r.slowDue.Sub(now)), true
	}
	return 0, false
}

// size returns the number of messages in the room that could be set aside.
func (r *waitingRoom) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.Len() - r.ordered
}

// messages lists the messages in the room that are not withheld, in the order of arrival.
func (r *waitingRoom) messages() []*message {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*message, 0, r.all.Len())
	for e := r.all.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*waiter); w.in != r.withheld {
			out = append(out, w.m)
		}
	}
	return out
}

// longest lists the messages that wait for an open transaction, the oldest first.
func (r *waitingRoom) longest() []*message {
	waiting := r.messages()
	slices.SortStableFunc(waiting, func(a, b *message) int { return a.waitingSince().Compare(b.waitingSince()) })
	return waiting
}

// removeMessages removes and returns the idle messages for which must returns true. It calls must
// in the order of arrival.
func (r *waitingRoom) removeMessages(must func(*message) bool) []*message {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*message
	for e := r.all.Front(); e != nil; {
		w := e.Value.(*waiter)
		e = e.Next()
		if w.idle != nil && must(w.m) {
			out = append(out, r.takeIdle(w))
			r.remove(w)
		}
	}
	return out
}
