package verifier

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
)

// A carriedSet contains the carried messages that this verifier holds: unpacked and not done. The
// consumers bound it. If several copies of a message are here, one of them is judged; the others
// have joined it and share its end. Messages of ordered queues are never in the set.
type carriedSet struct {
	mostJoined, mostBytes int // bounds of all copies that have joined others

	ever atomic.Bool // a carried message has been delivered

	mu     sync.Mutex
	held   map[uuid.UUID]*heldCarried
	joined int // copies that have joined others
	bytes  int // of these copies
}

// A heldCarried is a carried message that this verifier holds.
type heldCarried struct {
	id     uuid.UUID
	target bridge.Target
	taken  time.Time // when it was unpacked
	// recorded is a time at which its row certainly existed, by our clock.
	recorded time.Time

	touched atomic.Int64 // when its stage time was last moved, in ms since 1970; 0: unknown

	// The carriedSet's mutex guards the rest.
	looked    bool      // the ledger has been asked about it
	committed time.Time // when it was found committed; zero: not found
	copies    []*message
}

// touchAfter is how long a committed message is held before its stage time is moved on. Most
// messages are forwarded by then.
const touchAfter = 500 * time.Millisecond

// clockMargin is the largest assumed difference between the clocks of senders and verifiers,
// together with the time from a message's staging time to its INSERT, for an estimate of a row's
// age. If the row is younger than estimated, its stage time may end before the next Touch, which
// costs a needless copy.
const clockMargin = time.Minute

// newCarriedSet limits the copies that have joined others to a quarter of the places and bytes of
// the staging queue's consumer: they hold these places until the message that they joined ends.
func newCarriedSet(places, bytes int) *carriedSet {
	return &carriedSet{mostJoined: places / 4, mostBytes: bytes / 4, held: make(map[uuid.UUID]*heldCarried)}
}

// take reports whether m is to be judged. If not, m has joined another copy of the same message.
func (c *carriedSet) take(m *message) bool {
	if c == nil || !m.staged.Carried || m.unacked.From.Ordered {
		return true
	}
	c.ever.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if first := c.held[m.staged.ID]; first != nil {
		return !c.join(first, m) // beyond the bounds m is judged by itself
	}
	c.hold(m)
	return true
}

func (c *carriedSet) hold(m *message) {
	h := newHeldCarried(m, time.Now())
	m.carried, c.held[h.id] = h, h
}

func newHeldCarried(m *message, now time.Time) *heldCarried {
	h := &heldCarried{
		id: m.staged.ID, taken: now, recorded: m.received,
		target: bridge.Target{Exchange: m.staged.Exchange, RoutingKey: m.staged.RoutingKey},
	}
	if at := m.staged.StagedAt; !at.IsZero() && at.Add(clockMargin).Before(h.recorded) {
		h.recorded = at.Add(clockMargin)
	}
	if at := m.touchedAt; !at.After(now) && !at.IsZero() {
		h.touched.Store(at.UnixMilli())
	}
	return h
}

func (c *carriedSet) join(first *heldCarried, m *message) bool {
	if c.joined == c.mostJoined || c.bytes+len(m.delivery.Body) > c.mostBytes {
		return false
	}
	first.copies = append(first.copies, m)
	c.joined++
	c.bytes += len(m.delivery.Body)
	return true
}

// remove removes m, which is done, and returns the copies that had joined it.
func (c *carriedSet) remove(m *message) (copies []*message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := m.carried
	m.carried = nil
	delete(c.held, h.id)
	c.uncount(h.copies)
	return h.copies
}

func (c *carriedSet) uncount(copies []*message) {
	c.joined -= len(copies)
	for _, m := range copies {
		c.bytes -= len(m.delivery.Body)
	}
}

// removeCopies removes and returns the joined copies for which must returns true.
func (c *carriedSet) removeCopies(must func(*message) bool) (removed []*message) {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.held {
		h.copies = slices.DeleteFunc(h.copies, func(m *message) bool {
			if !must(m) {
				return false
			}
			removed = append(removed, m)
			return true
		})
	}
	c.uncount(removed)
	return removed
}

// has reports whether a message is held.
func (c *carriedSet) has(id uuid.UUID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[id] != nil
}

// looked notes that the ledger was asked about messages, committed that it has found them.
func (c *carriedSet) looked(messages ...*message) {
	c.each(messages, func(h *heldCarried) { h.looked = true })
}

func (c *carriedSet) committed(now time.Time, messages ...*message) {
	c.each(messages, func(h *heldCarried) { h.looked, h.committed = true, now })
}

func (c *carriedSet) each(messages []*message, do func(*heldCarried)) {
	if c == nil || !c.ever.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range messages {
		if m.carried != nil {
			do(m.carried)
		}
	}
}

// unjudged reports whether a message that was unpacked before now has not been looked up yet.
func (c *carriedSet) unjudged(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.held {
		if !h.looked && h.taken.Before(now) {
			return true
		}
	}
	return false
}

// untouched returns at most limit committed messages whose stage time is to be moved on: messages
// that have been held for touchAfter, and messages whose target is unavailable.
func (c *carriedSet) untouched(now time.Time, isHeld func(bridge.Target) bool, limit int) (out []*heldCarried) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.held {
		if len(out) == limit {
			break
		}
		if !h.committed.IsZero() && h.touchDue(now) && (now.Sub(h.committed) >= touchAfter || isHeld(h.target)) {
			out = append(out, h)
		}
	}
	return out
}

// touchDue reports whether the stage time was never moved on, or half of the time by which the last
// Touch moved it has passed.
func (h *heldCarried) touchDue(now time.Time) bool {
	at := h.touched.Load()
	if at == 0 {
		return true
	}
	touched := time.UnixMilli(at)
	by := min(max(touched.Sub(h.recorded), driver.StageAgainAfter), driver.StageAgainWithin)
	return now.Sub(touched) >= by/2
}

// endsOf decides how the copies end that had joined m, now that m is done. If m is safe, they are
// done as well. If m was dropped, each is judged by itself, because the ID may have been recorded
// again since. If m goes back to its queue, they do too.
func endsOf(m *message, copies []*message, waiting *consume.Consumer) (done, again, back []*message) {
	for _, c := range copies {
		switch {
		case m.verdict == Forwarded, m.verdict == DeadLettered && m.committed:
			c.verdict, c.judged = Dropped, m.judged
			done = append(done, c)
		case m.verdict == SetAside && c.unacked.From != waiting:
			c.verdict, c.safe = SetAside, m.safe
			c.unacked.Split.Store(true)
			done = append(done, c)
		case m.verdict == "" && m.unacked.Back.Load():
			c.unacked.Back.Store(true)
			back = append(back, c)
		default: // if m was set aside, a copy from the waiting queue may be the one that was put there
			again = append(again, c)
		}
	}
	return done, again, back
}
