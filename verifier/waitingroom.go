package verifier

import (
	"container/list"
	"context"
	"sync"
)

// A waitingRoom holds messages whose transaction was open, or whose target took
// nothing, when they were last looked at. It is bounded: whoever exceeds its
// limit, or has been in it for too long, is set aside (session.thin).
//
// A message in the room is either idle, or with somebody: a settler that waits
// for its transaction, or the lookup. Nobody else judges it meanwhile.
type waitingRoom struct {
	mu    sync.Mutex
	fresh *list.List // idle, never settled: most transactions end soon
	slow  *list.List // idle, was still open at the end of a settle
	all   *list.List // of *guest, by arrival
	where map[*message]*guest

	slowSettling int
	slowLimit    int           // settlers that may wait for slow ones at the same time
	seats        chan struct{} // a token for a settler to look at the lists
	again        chan struct{} // a settle has ended: look all idle ones up
}

type guest struct {
	m       *message
	slow    bool
	idle    *list.Element // in fresh or slow; nil while it is with somebody
	arrival *list.Element
}

func newWaitingRoom(settlers int) *waitingRoom {
	return &waitingRoom{
		fresh:     list.New(),
		slow:      list.New(),
		all:       list.New(),
		where:     make(map[*message]*guest),
		slowLimit: max(1, settlers/2),
		seats:     make(chan struct{}, 1),
		again:     make(chan struct{}, 1),
	}
}

// enter takes messages in that nobody has settled yet.
func (r *waitingRoom) enter(messages ...*message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range messages {
		g := &guest{m: m}
		g.arrival = r.all.PushBack(g)
		r.where[m] = g
		r.idle(g)
	}
}

func (r *waitingRoom) idle(g *guest) {
	if g.slow {
		g.idle = r.slow.PushBack(g)
	} else {
		g.idle = r.fresh.PushBack(g)
	}
	wake(r.seats)
}

// busy takes a guest out of the idle ones.
func (r *waitingRoom) busy(g *guest) *message {
	if g.slow {
		r.slow.Remove(g.idle)
	} else {
		r.fresh.Remove(g.idle)
	}
	g.idle = nil
	return g.m
}

// next waits for a message to settle; nil when ctx ends. The message is the
// settler's until it calls stay or leave.
func (r *waitingRoom) next(ctx context.Context) *message {
	for {
		if m := r.pick(); m != nil {
			return m
		}
		select {
		case <-r.seats:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *waitingRoom) pick() *message {
	r.mu.Lock()
	defer r.mu.Unlock()
	var front *list.Element
	if front = r.fresh.Front(); front == nil && r.slowSettling < r.slowLimit {
		front = r.slow.Front()
	}
	if front == nil {
		return nil
	}
	g := front.Value.(*guest)
	if g.slow {
		r.slowSettling++
	}
	if r.fresh.Len()+r.slow.Len() > 1 {
		wake(r.seats) // for the next settler
	}
	return r.busy(g)
}

// settled ends the settling of m: it stays, as a slow one, or it leaves.
func (r *waitingRoom) settled(m *message, stays bool) {
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
	if r.fresh.Len()+r.slow.Len() > 0 {
		wake(r.again)
	}
}

func (r *waitingRoom) remove(g *guest) {
	r.all.Remove(g.arrival)
	delete(r.where, g.m)
}

// lookAgain hands out at most limit idle messages for another lookup, those
// that have gone without one for longest first. Each must come back through
// looked.
func (r *waitingRoom) lookAgain(limit int) []*message {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*message
	for _, idle := range []*list.List{r.fresh, r.slow} {
		for len(out) < limit && idle.Len() > 0 {
			out = append(out, r.busy(idle.Front().Value.(*guest)))
		}
	}
	return out
}

// looked ends another lookup of m: found, it leaves; else it waits on.
func (r *waitingRoom) looked(m *message, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.where[m]; found {
		r.remove(g)
	} else {
		r.idle(g)
	}
}

// idlers is the number of messages that nobody settles at present.
func (r *waitingRoom) idlers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fresh.Len() + r.slow.Len()
}

func (r *waitingRoom) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.Len()
}

// guests lists all messages in the room, in the order of arrival.
func (r *waitingRoom) guests() []*message {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*message, 0, r.all.Len())
	for e := r.all.Front(); e != nil; e = e.Next() {
		out = append(out, e.Value.(*guest).m)
	}
	return out
}

// leave takes out the idle messages for which must, called in the order of
// arrival, says so.
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
