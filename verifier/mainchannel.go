package verifier

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// behindAfter is how much later others may have been published that are confirmed
// already, before a target without a confirm is held. In a burst RabbitMQ's credit flow can
// silence the connection sooner: then it is how long the silence may last.
const behindAfter = time.Second

// burst is how many messages in flight to one target can silence a connection: a quorum
// queue's client blocks its channel from 32 on (RabbitMQ's quorum_commands_soft_limit), a
// classic queue from some hundreds on (credit_flow_default_credit).
const burst = 32

// A mainChannel publishes many messages at a time, over a connection of its own, and
// knows which are in flight.
type mainChannel struct {
	conn      *bridge.Connection
	publisher *bridge.Publisher
	taking    context.Context // ends when the channel is left
	leave     context.CancelFunc

	mu     sync.Mutex
	flying map[bridge.Target]*list.List // of *attempt, the oldest first
	count  int
	heard  time.Time // when the last confirm came, or nothing was in flight
	latest time.Time // when the latest of those that are confirmed was published
}

// An attempt is a message in flight.
type attempt struct {
	p    *publication
	at   time.Time
	item *list.Element // nil when it is over
}

func newMainChannel(ctx context.Context, conn *bridge.Connection, limit int) (*mainChannel, error) {
	publisher, err := openPublisher(ctx, conn, limit)
	if err != nil {
		return nil, err
	}
	c := newFlight()
	c.conn, c.publisher = conn, publisher
	c.taking, c.leave = context.WithCancel(ctx)
	return c, nil
}

// newFlight is a main channel without its connection.
func newFlight() *mainChannel {
	return &mainChannel{flying: make(map[bridge.Target]*list.List)}
}

func (c *mainChannel) close() {
	c.leave()
	c.conn.Close()
}

// begin puts a message among those in flight.
func (c *mainChannel) begin(p *publication) *attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &attempt{p: p, at: time.Now()}
	all := c.flying[p.to]
	if all == nil {
		all = list.New()
		c.flying[p.to] = all
	}
	a.item = all.PushBack(a)
	if c.count++; c.count == 1 {
		c.heard = a.at
	}
	return a
}

// sent begins the time of an attempt, which may have waited for room before.
func (c *mainChannel) sent(a *attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.at = time.Now()
}

// forget takes an attempt out; it returns false if that was done before.
func (c *mainChannel) forget(a *attempt) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remove(a)
}

// confirmed is forget for an attempt that has been reported. The broker has told what
// became of it, unless it is unconfirmed.
func (c *mainChannel) confirmed(a *attempt, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !errors.Is(err, bridge.ErrUnconfirmed) {
		c.heard = time.Now()
		if a.at.After(c.latest) {
			c.latest = a.at
		}
		if a.item != nil { // otherwise it is somebody else's by now
			a.p.slow = c.heard.Sub(a.at) >= behindAfter
		}
	}
	return c.remove(a)
}

func (c *mainChannel) remove(a *attempt) bool {
	if a.item == nil {
		return false
	}
	all := c.flying[a.p.to]
	all.Remove(a.item)
	a.item = nil
	if all.Len() == 0 {
		delete(c.flying, a.p.to)
	}
	c.count--
	return true
}

// look tells which targets have fallen behind, whether one of them is so for as long as
// patience, and whether the channel as a whole has been silent for as long.
func (c *mainChannel) look(now time.Time, patience time.Duration) (behind []bridge.Target, overdue, silent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	after := min(behindAfter, patience)
	quiet := now.Sub(c.heard) >= after
	for to, all := range c.flying {
		oldest := all.Front().Value.(*attempt).at
		if c.latest.Sub(oldest) >= after || quiet && c.silences(all) {
			behind = append(behind, to)
			overdue = overdue || now.Sub(oldest) >= patience
		}
	}
	return behind, overdue, c.count > 0 && now.Sub(c.heard) >= patience
}

// silences tells whether a target without confirms may have silenced the connection: it has
// a burst in flight, the oldest of which is older than one that is confirmed.
func (c *mainChannel) silences(all *list.List) bool {
	return all.Len() >= burst && all.Front().Value.(*attempt).at.Before(c.latest)
}

// unread takes out what a silenced channel kept from the broker, which reads a connection
// in order: as a rule all that it has read is confirmed, but for the targets that are behind,
// and what it has not read was published later than anything that is confirmed. It may come
// twice: the broker reads it after all when it gives credit again, or had read it.
func (c *mainChannel) unread(now time.Time) (out []*publication) {
	c.mu.Lock()
	defer c.mu.Unlock()
	long := now.Add(-behindAfter)
	if c.heard.After(long) {
		return nil
	}
	var later []*list.List
	silenced := false
	for _, all := range c.flying {
		silenced = silenced || c.silences(all)
		if !all.Front().Value.(*attempt).at.Before(c.latest) {
			later = append(later, all)
		}
	}
	if !silenced { // by none of them
		return nil
	}
	for _, all := range later {
		out = append(out, c.takeOut(all, func(a *attempt) bool { return !a.at.After(long) })...)
	}
	return out
}

// takeOut takes those attempts out for which the condition holds.
func (c *mainChannel) takeOut(all *list.List, which func(*attempt) bool) (out []*publication) {
	for item := all.Front(); item != nil; {
		a := item.Value.(*attempt)
		item = item.Next()
		if which(a) {
			c.remove(a)
			out = append(out, a.p)
		}
	}
	return out
}

// giveUp takes out what is in flight for longer than patience, or all.
func (c *mainChannel) giveUp(now time.Time, patience time.Duration, all bool) (out []*publication) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, attempts := range c.flying {
		out = append(out, c.takeOut(attempts, func(a *attempt) bool { return all || now.Sub(a.at) >= patience })...)
	}
	return out
}

// abandon takes publications out, whatever becomes of them.
func (c *mainChannel) abandon(must func(*publication) bool) (out []*publication) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, attempts := range c.flying {
		out = append(out, c.takeOut(attempts, func(a *attempt) bool { return must(a.p) })...)
	}
	return out
}

// excuse lets the time begin anew: the broker takes nothing from anybody.
func (c *mainChannel) excuse(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = now
	for _, all := range c.flying {
		for item := all.Front(); item != nil; item = item.Next() {
			item.Value.(*attempt).at = now
		}
	}
}

func (c *mainChannel) empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count == 0
}
