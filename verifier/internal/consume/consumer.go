// Package consume consumes queues. It receives deliveries within bounds of number and bytes, acks or
// hands them back, and keeps the messages of a key in order. It does not know ledgers, sessions, or
// the meaning of a message.
package consume

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

// errEnded: the broker has ended the consumer, because the queue was deleted, its leader has moved, or
// a message was held for too long.
var errEnded = fmt.Errorf("%w: consumer ended by the broker", bridge.ErrUnavailable)

// A Config has the arguments of Open and OpenOrderedQueue. All are required.
type Config struct {
	Queue    string
	Prefetch int
	MaxBytes int
	HandBack time.Duration // how long a delivery is held at most
	Ordered  bool          // the queue is ordered; OpenOrderedQueue sets it
	// Arrive takes over a delivery. It must call u.CountMessages before anything else.
	Arrive func(u *Unacked, d amqp.Delivery)
}

// A Consumer consumes one queue on its own channel.
//
// The broker limits the number of a consumer's unacked deliveries, but not their bytes (RabbitMQ's
// guide 'Consumer Prefetch'). So the consumer keeps the content of at most MaxBytes. A delivery
// that exceeds this rests: the consumer keeps only its tag until there is room. Then it hands the
// delivery back, and it comes again.
//
// A message that no queue of the broker accepts rests too, until it is too old to be held.
//
// The consumer of an ordered queue hands nothing back, since that would change the order. Its
// resting deliveries come again over the next channel (OrderedQueue).
//
// All consumers share a connection. The connection reads at most about readAhead and one message
// ahead of them.
type Consumer struct {
	Config
	conn *bridge.Connection
	ch   *amqp.Channel
	acks *acks

	order  *KeyOrder // nil unless the queue is ordered
	opened time.Time

	deliveries <-chan amqp.Delivery
	cancels    <-chan string
	refusals   <-chan *amqp.Error // why the channel has ended

	arrived *pipe.Gatherer[arrival] // not unpacked yet
	open    atomic.Int64            // messages that were unpacked and are not done
	freed   chan struct{}

	mu       sync.Mutex
	received bool // the consumer has received a delivery
	bytes    int  // of the deliveries whose content is kept
	resting  []*Unacked

	returning  int // bytes that were handed back because there is room for them, and have not come again
	handedBack time.Time
}

type arrival struct {
	unacked  *Unacked
	delivery amqp.Delivery
}

// restInterval is the time between checks for room for resting deliveries. Deliveries that the last
// check handed back should have come again by then; otherwise the next one would hand back more
// than fits.
const restInterval = 50 * time.Millisecond

// returnPatience is how long room is reserved for deliveries that were handed back.
const returnPatience = 5 * restInterval

// readAhead bounds the bytes of deliveries that the connection reads before the consumers receive
// them.
const readAhead = 1 << 20

// Open opens a channel for a Consumer.
func Open(conn *bridge.Connection, config Config) (*Consumer, error) {
	conn.BoundReadAhead(readAhead) // again, since the last channel may have ended with deliveries in it
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := conn.Request(func() error { return ch.Qos(config.Prefetch, 0, false) }); err != nil {
		return nil, fmt.Errorf("set prefetch: %w", err)
	}
	c := New(config)
	c.conn, c.ch, c.acks.ch = conn, ch, ch
	return c, nil
}

// New returns a Consumer without a channel.
func New(config Config) *Consumer {
	c := &Consumer{Config: config, acks: newAcks(nil), arrived: pipe.NewGatherer[arrival](), freed: make(chan struct{}, 1), opened: time.Now()}
	if c.Ordered {
		c.order = newKeyOrder()
	}
	return c
}

// Consume starts the consumer. It must be called before Finish, which makes a request on the same
// channel: two requests at once end the channel.
func (c *Consumer) Consume() (err error) {
	c.cancels = c.ch.NotifyCancel(make(chan string, 1))
	c.refusals = c.ch.NotifyClose(make(chan *amqp.Error, 1))
	const autoAck, exclusive, noLocal, noWait = false, false, false, false
	err = c.conn.Request(func() (err error) {
		c.deliveries, err = c.ch.Consume(c.Queue, "", autoAck, exclusive, noLocal, noWait, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("consume %q: %w", c.Queue, err)
	}
	return nil
}

// Take receives deliveries until ctx ends. It must run while a session drains too: acks bring new
// deliveries, which stay unacked. The consumer is not cancelled before, because RabbitMQ 3.10 ignores
// some of the acks that reach a quorum queue after a basic.cancel (measured). The end of the channel
// cancels it.
func (c *Consumer) Take(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, cancelled := <-c.cancels:
			return c.endReason(cancelled)
		case d, ok := <-c.deliveries:
			if !ok {
				cancelled := false
				select {
				case _, cancelled = <-c.cancels: // the library sends the broker's cancel first
				default:
				}
				return c.endReason(cancelled)
			}
			c.conn.Received(d)
			c.receive(d)
		}
	}
}

// Discard receives deliveries that are no longer wanted, until the channel ends or done is closed:
// the broker's answers arrive behind them. No other goroutine may receive meanwhile, because acking
// a later delivery would ack the discarded ones.
func (c *Consumer) Discard(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case d, ok := <-c.deliveries:
			if !ok {
				return
			}
			c.conn.Received(d)
		}
	}
}

// discardDuring runs do, while Discard runs.
func (c *Consumer) discardDuring(do func() error) error {
	done := make(chan struct{})
	var discarding sync.WaitGroup
	discarding.Go(func() { c.Discard(done) })
	err := do()
	close(done)
	discarding.Wait()
	return err
}

// Unpack passes deliveries to Arrive, while the consumer holds fewer messages than it may.
func (c *Consumer) Unpack(ctx context.Context) error {
	const limit = 100
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.arrived.More:
		}
		for _, a := range c.arrived.Take(limit) {
			if !c.waitRoom(ctx) {
				return nil
			}
			c.Arrive(a.unacked, a.delivery)
		}
	}
}

// RunAcks acks until ctx ends.
func (c *Consumer) RunAcks(ctx context.Context) error { return c.acks.run(ctx) }

// endReason returns why the consumer has ended. The library reports the reason of the end of its
// channel or connection before it closes the deliveries. If the broker has cancelled the consumer, it
// gives no reason.
func (c *Consumer) endReason(cancelled bool) error {
	select {
	case reason := <-c.refusals:
		if reason != nil {
			return fmt.Errorf("consume %q: %w: %w", c.Queue, errEnded, reason)
		}
	default:
	}
	if cancelled {
		return fmt.Errorf("consume %q: %w: the queue was deleted, its leader has moved, or a message was held for longer than consumer_timeout", c.Queue, errEnded)
	}
	return fmt.Errorf("consume %q: %w", c.Queue, errEnded)
}

// receive keeps a delivery, or lets it rest. It must not block, or the connection stops reading.
func (c *Consumer) receive(d amqp.Delivery) {
	if u, kept := c.keep(d); kept {
		c.arrived.Add(arrival{u, d})
	}
}

func (c *Consumer) keep(d amqp.Delivery) (u *Unacked, kept bool) {
	u = &Unacked{From: c, Received: time.Now(), tag: d.DeliveryTag, bytes: wire.Held(d)}
	c.acks.register(u.tag)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.received = true
	if !c.fits(c.bytes, u) || (!d.Redelivered || c.order != nil) && c.roomReserved(u.Received) {
		c.resting = append(c.resting, u)
		return u, false
	}
	c.bytes += u.bytes
	c.returning = max(0, c.returning-u.bytes)
	return u, true
}

// fits reports whether there is room for u beside a number of bytes. Alone u always fits.
func (c *Consumer) fits(bytes int, u *Unacked) bool {
	return bytes == 0 || bytes+u.bytes <= c.MaxBytes
}

// roomReserved reports whether the free room is reserved for earlier deliveries. Otherwise small
// newcomers would leave a large message no room for ever.
func (c *Consumer) roomReserved(now time.Time) bool {
	return c.expected(now) > 0 || slices.ContainsFunc(c.resting, needsRoom)
}

func needsRoom(u *Unacked) bool { return !u.Stranded.Load() }

// expected returns the number of bytes that were handed back and should come again. They may go to
// another verifier, so no room is reserved for them for long.
func (c *Consumer) expected(now time.Time) int {
	if now.Sub(c.handedBack) > returnPatience {
		c.returning = 0
	}
	return c.returning
}

// HandBackResting hands back resting deliveries: as many as there is room for, and any that are too
// old.
func (c *Consumer) HandBackResting(ctx context.Context) error {
	ticker := time.NewTicker(restInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			c.acks.handBack(c.takeResting(now)...)
		}
	}
}

// takeResting removes the resting deliveries to hand back, and returns their tags: in the order of
// arrival, up to the first that does not fit.
func (c *Consumer) takeResting(now time.Time) (tags []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	bytes, behind := c.bytes+c.expected(now), false
	c.resting = slices.DeleteFunc(c.resting, func(u *Unacked) bool {
		room := needsRoom(u) && !behind && c.fits(bytes, u)
		behind = behind || needsRoom(u) && !room
		if !room && now.Sub(u.Received) < c.HandBack {
			return false
		}
		if room {
			bytes += u.bytes
			c.returning += u.bytes
			c.handedBack = now
		}
		tags = append(tags, u.tag)
		return true
	})
	return tags
}

// Finish acks at the end all messages that are done, and hands back the rest. In an ordered queue
// the end of the channel hands back.
func (c *Consumer) Finish() error {
	if c.order != nil {
		return c.acks.finishInOrder()
	}
	return c.acks.finish()
}

// FinishLast is Finish after Take has ended: it discards the deliveries in front of the broker's
// answer.
func (c *Consumer) FinishLast() error { return c.discardDuring(c.Finish) }

// Order returns the key order, or nil if the queue is not ordered.
func (c *Consumer) Order() *KeyOrder { return c.order }

// Messages returns the number of messages that were unpacked and are not done.
func (c *Consumer) Messages() int { return int(c.open.Load()) }

// Full reports whether the queue may contain messages for which the consumer has no room.
func (c *Consumer) Full() bool { return c.crowded() || c.Short() }

// crowded reports whether the consumer holds as many messages as it may.
func (c *Consumer) crowded() bool { return int(c.open.Load()) >= c.Prefetch }

// Short reports whether the consumer lacks room for a delivery.
func (c *Consumer) Short() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.resting, needsRoom)
}

// Empty reports whether the consumer has no unacked delivery.
func (c *Consumer) Empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes == 0 && len(c.resting) == 0
}

// HasReceived reports whether the consumer has received a delivery.
func (c *Consumer) HasReceived() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received
}

// Bytes returns the bytes of the deliveries whose content is kept.
func (c *Consumer) Bytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

// Stranded counts the deliveries that rest because one of their messages is too large for the
// broker.
func (c *Consumer) Stranded() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range c.resting {
		if u.Stranded.Load() {
			n++
		}
	}
	return n
}

// waitRoom waits until the consumer holds fewer messages than it may: groups could bring many more
// than the prefetch count. It returns false if ctx ends.
func (c *Consumer) waitRoom(ctx context.Context) bool {
	for c.crowded() {
		select {
		case <-c.freed:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Done removes messages from the consumer's count, and acks, hands back or rests the unacked
// deliveries that have ended.
func (c *Consumer) Done(messages int, ended []*Unacked) {
	if messages == 0 && len(ended) == 0 {
		return
	}
	var tags, back []uint64
	c.mu.Lock()
	for _, u := range ended {
		c.bytes -= u.bytes
		switch {
		case u.Stranded.Load():
			c.resting = append(c.resting, u)
		case u.Back.Load():
			back = append(back, u.tag)
		default:
			tags = append(tags, u.tag)
		}
	}
	c.mu.Unlock()
	c.open.Add(-int64(messages))
	pipe.Wake(c.freed)
	if len(tags) > 0 {
		c.acks.done(tags...)
	}
	if len(back) > 0 {
		c.acks.handBack(back...)
	}
}
