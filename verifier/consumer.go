package verifier

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

// A consumer consumes one queue on its own channel. It has the channel's acks and the messages that
// it has received.
//
// The broker limits the number of a consumer's unacked deliveries, but not their bytes (RabbitMQ's
// guide 'Consumer Prefetch'). So the consumer keeps the content of at most maxBytes. A delivery
// that exceeds this rests: the consumer keeps only its tag until there is room. Then it hands the
// delivery back, and it comes again.
//
// A message that no queue of the broker accepts rests too, until it is too old to be held.
//
// The consumer of an ordered queue hands nothing back, since that would change the order. Its
// resting deliveries come again over the next channel (shard).
//
// All consumers share a connection. The connection reads at most about readAhead and one message
// ahead of them.
type consumer struct {
	queue    string
	prefetch int
	maxBytes int
	handBack time.Duration
	ch       *amqp.Channel
	acks     *acks

	keyOrder *keyOrder // the key order of an ordered queue, else nil
	opened   time.Time

	deliveries <-chan amqp.Delivery
	cancels    <-chan string
	refusals   <-chan *amqp.Error // why the channel has ended

	arrived *pipe.Gatherer[arrival] // not unpacked yet
	open    atomic.Int64            // messages that were unpacked and are not done
	freed   chan struct{}

	mu       sync.Mutex
	received bool // the consumer has received a delivery
	bytes    int  // of the deliveries whose content is kept
	resting  []*unackedDelivery

	returning  int // bytes that were handed back because there is room for them, and have not come again
	handedBack time.Time
}

// An unackedDelivery is a message, or a group of messages. It is acked when the last message is
// done.
type unackedDelivery struct {
	consumer *consumer
	tag      uint64
	bytes    int
	received time.Time
	single   bool         // not a group
	open     atomic.Int32 // messages that are not done
	apart    atomic.Bool  // another queue has a member already, which would be judged twice
	stranded atomic.Bool  // no queue of the broker accepts one of them
	back     atomic.Bool  // one of them could not be moved to any queue: the delivery is handed back
}

type arrival struct {
	unacked  *unackedDelivery
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

func newConsumer(queue string, prefetch, maxBytes int, handBack time.Duration, ch *amqp.Channel) *consumer {
	return &consumer{queue: queue, prefetch: prefetch, maxBytes: maxBytes, handBack: handBack, ch: ch,
		acks: newAcks(ch), arrived: pipe.NewGatherer[arrival](), freed: make(chan struct{}, 1), opened: time.Now()}
}

// consume starts the consumer. It must be called before acks.finish, which makes a request on the
// same channel: two requests at once end the channel.
func (c *consumer) consume() (err error) {
	c.cancels = c.ch.NotifyCancel(make(chan string, 1))
	c.refusals = c.ch.NotifyClose(make(chan *amqp.Error, 1))
	const autoAck, exclusive, noLocal, noWait = false, false, false, false
	c.deliveries, err = c.ch.Consume(c.queue, "", autoAck, exclusive, noLocal, noWait, nil)
	if err != nil {
		return fmt.Errorf("consume %q: %w", c.queue, err)
	}
	return nil
}

// endReason returns why the consumer has ended. The library reports the reason of the end of its
// channel or connection before it closes the deliveries.
func (c *consumer) endReason() error {
	select {
	case reason := <-c.refusals:
		if reason != nil {
			return fmt.Errorf("consume %q: %w: %w", c.queue, errConsumerEnded, reason)
		}
	default:
	}
	return fmt.Errorf("consume %q: %w", c.queue, errConsumerEnded)
}

// receive keeps a delivery, or lets it rest. It must not block, or the connection stops reading.
func (c *consumer) receive(d amqp.Delivery) {
	u := &unackedDelivery{consumer: c, tag: d.DeliveryTag, bytes: wire.Held(d), received: time.Now()}
	c.acks.register(u.tag)
	c.mu.Lock()
	c.received = true
	keep := c.fits(c.bytes, u) && (d.Redelivered && c.keyOrder == nil || !c.roomReserved(u.received))
	if keep {
		c.bytes += u.bytes
		c.returning = max(0, c.returning-u.bytes)
	} else {
		c.resting = append(c.resting, u)
	}
	c.mu.Unlock()
	if keep {
		c.arrived.Add(arrival{u, d})
	}
}

// fits reports whether there is room for u beside a number of bytes. Alone u always fits.
func (c *consumer) fits(bytes int, u *unackedDelivery) bool {
	return bytes == 0 || bytes+u.bytes <= c.maxBytes
}

// roomReserved reports whether the free room is reserved for earlier deliveries. Otherwise small
// newcomers would leave a large message no room for ever.
func (c *consumer) roomReserved(now time.Time) bool {
	return c.expected(now) > 0 || slices.ContainsFunc(c.resting, needsRoom)
}

func needsRoom(u *unackedDelivery) bool { return !u.stranded.Load() }

// expected returns the number of bytes that were handed back and should come again. They may go to
// another verifier, so no room is reserved for them for long.
func (c *consumer) expected(now time.Time) int {
	if now.Sub(c.handedBack) > returnPatience {
		c.returning = 0
	}
	return c.returning
}

// handBackResting hands back resting deliveries: as many as there is room for, and any that are too
// old.
func (c *consumer) handBackResting(ctx context.Context) error {
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
func (c *consumer) takeResting(now time.Time) (tags []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	bytes, behind := c.bytes+c.expected(now), false
	c.resting = slices.DeleteFunc(c.resting, func(u *unackedDelivery) bool {
		room := needsRoom(u) && !behind && c.fits(bytes, u)
		behind = behind || needsRoom(u) && !room
		if !room && now.Sub(u.received) < c.handBack {
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

// finish acks at the end all messages that are done, and hands back the rest. In an ordered queue
// the end of the channel hands back.
func (c *consumer) finish() error {
	if c.keyOrder != nil {
		return c.acks.finishInOrder()
	}
	return c.acks.finish()
}

// full reports whether the queue may contain messages for which the consumer has no room.
func (c *consumer) full() bool { return c.crowded() || c.short() }

// crowded reports whether the consumer holds as many messages as it may.
func (c *consumer) crowded() bool { return int(c.open.Load()) >= c.prefetch }

// short reports whether the consumer lacks room for a delivery.
func (c *consumer) short() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.resting, needsRoom)
}

// empty reports whether the consumer has no unacked delivery.
func (c *consumer) empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes == 0 && len(c.resting) == 0
}

func (c *consumer) hasReceived() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received
}

func (c *consumer) keptBytes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

// stranded counts the deliveries that rest because one of their messages is too large for the
// broker.
func (c *consumer) stranded() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range c.resting {
		if u.stranded.Load() {
			n++
		}
	}
	return n
}

// waitRoom waits until the consumer holds fewer messages than it may: groups could bring many more
// than the prefetch count. It returns false if ctx ends.
func (c *consumer) waitRoom(ctx context.Context) bool {
	for c.crowded() {
		select {
		case <-c.freed:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// countMessages sets the number of messages in an unacked delivery.
func (c *consumer) countMessages(u *unackedDelivery, messages int) {
	u.open.Store(int32(messages))
	u.single = messages == 1
	c.open.Add(int64(messages))
}

// done removes messages from the consumer's count, and acks, hands back or rests the unacked
// deliveries that have ended.
func (c *consumer) done(messages int, ended []*unackedDelivery) {
	if messages == 0 && len(ended) == 0 {
		return
	}
	var tags, back []uint64
	c.mu.Lock()
	for _, u := range ended {
		c.bytes -= u.bytes
		switch {
		case u.stranded.Load():
			c.resting = append(c.resting, u)
		case u.back.Load():
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
