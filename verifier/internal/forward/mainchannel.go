package forward

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// behindAfter: a target without a confirm is held when messages that were published to others this
// much later are confirmed. In a burst RabbitMQ's credit flow can silence the connection sooner;
// then behindAfter bounds the silence.
const behindAfter = time.Second

// silencingBurst is the number of messages in flight to one target that can silence a connection. A
// quorum queue's client blocks its channel from 32 on (RabbitMQ's quorum_commands_soft_limit), a
// classic queue from some hundreds on (credit_flow_default_credit).
const silencingBurst = 32

// A mainChannel publishes many messages at a time, over a separate connection, and tracks the
// messages in flight.
type mainChannel struct {
	conn      *bridge.Connection
	publisher *bridge.Publisher
	taking    context.Context // ends when the channel is left
	leave     context.CancelFunc

	mu       sync.Mutex
	inFlight map[bridge.Target]*list.List // of *attempt, the oldest first
	count    int
	heard    time.Time // when the last confirm came, or when nothing was in flight
	latest   time.Time // when the latest of the confirmed messages was published
}

// An attempt is a message in flight.
type attempt struct {
	p    *Publication
	at   time.Time
	item *list.Element // nil when the attempt is over
}

func newMainChannel(ctx context.Context, conn *bridge.Connection, limit int) (*mainChannel, error) {
	publisher, err := openPublisher(ctx, conn, limit)
	if err != nil {
		return nil, err
	}
	c := newUnconnected()
	c.conn, c.publisher = conn, publisher
	c.taking, c.leave = context.WithCancel(ctx)
	return c, nil
}

// newUnconnected returns a main channel without its connection.
func newUnconnected() *mainChannel {
	return &mainChannel{inFlight: make(map[bridge.Target]*list.List)}
}

func (c *mainChannel) close() {
	c.leave()
	c.conn.Close()
}

// begin adds a message to those in flight.
func (c *mainChannel) begin(p *Publication) *attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &attempt{p: p, at: time.Now()}
	all := c.inFlight[p.To]
	if all == nil {
		all = list.New()
		c.inFlight[p.To] = all
	}
	a.item = all.PushBack(a)
	if c.count++; c.count == 1 {
		c.heard = a.at
	}
	return a
}

// sent restarts the time of an attempt, which may have waited for room before.
func (c *mainChannel) sent(a *attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.at = time.Now()
}

// withdraw removes an attempt. It returns false if the attempt was removed before.
func (c *mainChannel) withdraw(a *attempt) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remove(a)
}

// confirmed is withdraw for an attempt with a result. Unless the result is ErrUnconfirmed, it comes
// from the broker.
func (c *mainChannel) confirmed(a *attempt, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !errors.Is(err, bridge.ErrUnconfirmed) {
		c.heard = time.Now()
		if a.at.After(c.latest) {
			c.latest = a.at
		}
		if a.item != nil { // otherwise another channel has the publication by now
			a.p.slow = c.heard.Sub(a.at) >= behindAfter
		}
	}
	return c.remove(a)
}

func (c *mainChannel) remove(a *attempt) bool {
	if a.item == nil {
		return false
	}
	all := c.inFlight[a.p.To]
	all.Remove(a.item)
	a.item = nil
	if all.Len() == 0 {
		delete(c.inFlight, a.p.To)
	}
	c.count--
	return true
}

// check returns the targets that have fallen behind, whether one of them has been so for patience,
// and whether the whole channel has been silent for patience.
func (c *mainChannel) check(now time.Time, patience time.Duration) (behind []bridge.Target, overdue, silent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	after := min(behindAfter, patience)
	quiet := now.Sub(c.heard) >= after
	for to, all := range c.inFlight {
		oldest := all.Front().Value.(*attempt).at
		if c.latest.Sub(oldest) >= after || quiet && c.silences(all) {
			behind = append(behind, to)
			overdue = overdue || now.Sub(oldest) >= patience
		}
	}
	return behind, overdue, c.count > 0 && now.Sub(c.heard) >= patience
}

// silences reports whether a target without confirms may have silenced the connection: it has a
// burst in flight, and the oldest of it was published before a message that is confirmed.
func (c *mainChannel) silences(all *list.List) bool {
	return all.Len() >= silencingBurst && all.Front().Value.(*attempt).at.Before(c.latest)
}

// unread removes and returns the publications that the broker has probably not read because a
// target silenced the channel. The broker reads a connection in order. So as a rule all
// publications that it has read are confirmed, except to targets that are behind, and the unread
// ones were published later than anything confirmed. They may arrive twice: the broker reads them
// when it grants credit again, or has read them already.
func (c *mainChannel) unread(now time.Time) (out []*Publication) {
	c.mu.Lock()
	defer c.mu.Unlock()
	long := now.Add(-behindAfter)
	if c.heard.After(long) {
		return nil
	}
	var later []*list.List
	silenced := false
	for _, all := range c.inFlight {
		silenced = silenced || c.silences(all)
		if !all.Front().Value.(*attempt).at.Before(c.latest) {
			later = append(later, all)
		}
	}
	if !silenced { // no target has silenced the channel
		return nil
	}
	for _, all := range later {
		out = append(out, c.takeOut(all, func(a *attempt) bool { return !a.at.After(long) })...)
	}
	return out
}

// takeOut removes and returns the attempts for which the condition holds.
func (c *mainChannel) takeOut(all *list.List, which func(*attempt) bool) (out []*Publication) {
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

// giveUp removes and returns publications that are in flight for longer than patience, or all.
func (c *mainChannel) giveUp(now time.Time, patience time.Duration, all bool) (out []*Publication) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, attempts := range c.inFlight {
		out = append(out, c.takeOut(attempts, func(a *attempt) bool { return all || now.Sub(a.at) >= patience })...)
	}
	return out
}

// abandon removes and returns the publications for which must returns true, without their results.
func (c *mainChannel) abandon(must func(*Publication) bool) (out []*Publication) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, attempts := range c.inFlight {
		out = append(out, c.takeOut(attempts, func(a *attempt) bool { return must(a.p) })...)
	}
	return out
}

// restartTimes restarts all times: the broker accepts no message from any connection.
func (c *mainChannel) restartTimes(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = now
	for _, all := range c.inFlight {
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
