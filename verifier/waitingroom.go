package verifier

import (
	"container/list"
	"context"
	"sync"
	"time"
)

const (
	// slowAge is the age from which a message counts as slow: most transactions end soon after they
	// have staged.
	slowAge = 100 * time.Millisecond
	// slowLook is the time between lookups of slow messages. Each lookup costs a probe per message, so
	// with many open transactions more frequent ones would slow down all messages.
	slowLook = 100 * time.Millisecond
	// slowShare is how many slow messages are looked up together, so that no other message waits for a
	// long lookup.
	slowShare = 100
)

// A waitingRoom holds messages whose transaction was open, or looked rolled back without evidence,
// at their last lookup. It is bounded: messages that exceed its limit, or have been in it for too
// long, are set aside (session.thin).
//
// A message in the room is either idle, or busy: in a lookup, or with a settler that waits for its
// transaction. A busy message has no other judge meanwhile.
type waitingRoom struct {
	mu    sync.Mutex
	fresh *list.List // idle
	slow  *list.List // idle, was still open after slowAge
	kept  *list.List // idle, looks rolled back: withheld until there is evidence
	all   *list.List // of *guest, by arrival
	where map[*message]*guest

	evident      bool // there is evidence: no message is withheld any more
	ordered      int  // messages among all that must keep their order and are never set aside
	slowSettling int
	slowLimit    int           // most settlers that wait for slow messages at the same time
	slowDue      time.Time     // when the next share of the slow messages is to be looked up again
	slowAll      bool          // all slow messages are to be looked up, at once
	seats        chan struct{} // a token for a settler to look at the lists
	again        chan struct{} // a transaction has ended: others may share its fate
}

type guest struct {
	m       *message
	slow    bool
	in      *list.List    // fresh, slow or kept
	idle    *list.Element // its place in that list; nil while busy
	arrival *list.Element
}

func newWaitingRoom(settlers int) *waitingRoom {
	return &waitingRoom{
		fresh:     list.New(),
		slow:      list.New(),
		kept:      list.New(),
		all:       list.New(),
		where:     make(map[*message]*guest),
		slowLimit: max(1, settlers/2),
		seats:     make(chan struct{}, 1),
		again:     make(chan struct{}, 1),
	}
}

// enter adds messages. They are slow if they have waited before.
func (r *waitingRoom) enter(slow bool, messages ...*message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range messages {
		g := &guest{m: m, slow: slow}
		g.arrival = r.all.PushBack(g)
		if m.keyOrder != nil {
			r.ordered++
		}
		r.where[m] = g
		r.idle(g)
	}
}

func (r *waitingRoom) idle(g *guest) {
	g.in = r.fresh
	if g.slow {
		g.in = r.slow
	}
	g.idle = g.in.PushBack(g)
	wake(r.seats)
}

// busy removes a guest from the idle ones.
func (r *waitingRoom) busy(g *guest) *message {
	g.in.Remove(g.idle)
	g.in, g.idle = nil, nil
	return g.m
}

// next waits for a message to settle; nil when ctx ends. The settler owns the message until it
// calls waited or withhold.
func (r *waitingRoom) next(ctx context.Context) (m *message, slow bool) {
	for {
		if m, slow = r.pick(); m != nil {
			return m, slow
		}
		select {
		case <-r.seats:
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
	g := front.Value.(*guest)
	if g.slow {
		r.slowSettling++
	}
	if r.fresh.Len()+r.slow.Len() > 1 {
		wake(r.seats) // for the next settler
	}
	return r.busy(g), g.slow
}

// waited ends a settler's wait for m: m stays, as a slow one, or it leaves.
func (r *waitingRoom) waited(m *message, stays bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.where[m]
	if g.slow {
		r.slowSettling--
	}
	if stays {
		g.slow = true
		r.idle(g)
		return
	}
	r.remove(g)
	wake(r.seats)
	r.ended(g)
}

// withhold ends a settler's wait for m, which looks rolled back: m stays, and is neither settled
// nor looked up again before release.
func (r *waitingRoom) withhold(m *message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.where[m]
	if g.slow {
		r.slowSettling--
	}
	g.slow = true
	if r.evident { // evidence was found meanwhile
		r.idle(g)
		return
	}
	m.withheld = true
	g.in = r.kept
	g.idle = g.in.PushBack(g)
	wake(r.seats)
}

// release returns withheld messages to the idle ones, because there is evidence.
func (r *waitingRoom) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.evident = true
	for r.kept.Len() > 0 {
		g := r.kept.Front().Value.(*guest)
		r.busy(g).withheld = false
		r.idle(g)
	}
}

// withheld counts the messages that wait for evidence.
func (r *waitingRoom) withheld() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept.Len()
}

// ended requests an immediate lookup of messages that may belong to the same transaction as g. A
// transaction that was open for long has all its messages among the slow ones.
func (r *waitingRoom) ended(g *guest) {
	if g.slow {
		r.slowAll = true
	}
	if r.fresh.Len() > 0 || g.slow && r.slow.Len() > 0 {
		wake(r.again)
	}
}

func (r *waitingRoom) remove(g *guest) {
	r.all.Remove(g.arrival)
	if g.m.keyOrder != nil {
		r.ordered--
	}
	delete(r.where, g.m)
}

// lookAgain returns at most limit idle messages for another lookup, the slow ones only when that is
// due, those without a lookup for longest first. Each must be returned through looked.
func (r *waitingRoom) lookAgain(now time.Time, limit int) []*message {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*message
	take := func(idle *list.List, limit int) {
		for ; limit > 0 && idle.Len() > 0; limit-- {
			out = append(out, r.busy(idle.Front().Value.(*guest)))
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
	if g := r.where[m]; found {
		r.remove(g)
		r.ended(g)
	} else {
		g.slow = g.slow || now.Sub(m.received) >= slowAge
		r.idle(g)
	}
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

// guests lists the messages in the room that are not withheld, in the order of arrival.
func (r *waitingRoom) guests() []*message {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*message, 0, r.all.Len())
	for e := r.all.Front(); e != nil; e = e.Next() {
		if g := e.Value.(*guest); g.in != r.kept {
			out = append(out, g.m)
		}
	}
	return out
}

// leave removes and returns the idle messages for which must returns true. It calls must in the
// order of arrival.
func (r *waitingRoom) leave(must func(*message) bool) []*message {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*message
	for e := r.all.Front(); e != nil; {
		g := e.Value.(*guest)
		e = e.Next()
		if g.idle != nil && must(g.m) {
			out = append(out, r.busy(g))
			r.remove(g)
		}
	}
	return out
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
