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
)

// A lane is a consumer on its own channel, with its acks, and with the messages that it has
// received.
//
// The broker limits the number of a consumer's unacked deliveries, but not their bytes (RabbitMQ's
// guide 'Consumer Prefetch'). So the lane keeps the content of at most maxBytes. A delivery that
// exceeds this rests: the lane keeps only its tag until there is room. Then it hands the delivery
// back, and it comes again.
//
// A message that no queue of the broker accepts rests too, until it is too old to be held.
//
// The lane of an ordered queue hands nothing back, since that would change the order. Its resting
// deliveries come again over the next channel (shard).
//
// All lanes share a connection. The connection reads at most about readAhead and one message ahead
// of them.
type lane struct {
	queue    string
	prefetch int
	maxBytes int
	handBack time.Duration
	ch       *amqp.Channel
	acks     *acks

	line   *line // the key order of an ordered queue, else nil
	opened time.Time

	deliveries <-chan amqp.Delivery
	cancels    <-chan string
	refusals   <-chan *amqp.Error // why the channel has ended

	arrived *gatherer[arrival] // not unpacked yet
	open    atomic.Int64       // messages that were unpacked and are not done
	freed   chan struct{}

	mu       sync.Mutex
	received bool // the lane has received a delivery
	bytes    int  // of the deliveries whose content is kept
	resting  []*parcel

	returning  int // bytes that were handed back because there is room for them, and have not come again
	handedBack time.Time
}

// A parcel is one unacked delivery: a message, or a group of messages. It is acked when the last of
// them is done.
type parcel struct {
	lane     *lane
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
	parcel   *parcel
	delivery amqp.Delivery
}

// restInterval is the time between checks for room for resting deliveries. Deliveries that the last
// check handed back should have come again by then; otherwise the next one would hand back more
// than fits.
const restInterval = 50 * time.Millisecond

// returnPatience is how long room is reserved for deliveries that were handed back.
const returnPatience = 5 * restInterval

// readAhead bounds the bytes of deliveries that the connection reads before the lanes receive them.
const readAhead = 1 << 20

func newLane(queue string, prefetch, maxBytes int, handBack time.Duration, ch *amqp.Channel) *lane {
	return &lane{queue: queue, prefetch: prefetch, maxBytes: maxBytes, handBack: handBack, ch: ch,
		acks: newAcks(ch), arrived: newGatherer[arrival](), freed: make(chan struct{}, 1), opened: time.Now()}
}

// consume starts the consumer. It must be called before acks.finish, which makes a request on the
// same channel: two requests at once end the channel.
func (l *lane) consume() (err error) {
	l.cancels = l.ch.NotifyCancel(make(chan string, 1))
	l.refusals = l.ch.NotifyClose(make(chan *amqp.Error, 1))
	const autoAck, exclusive, noLocal, noWait = false, false, false, false
	l.deliveries, err = l.ch.Consume(l.queue, "", autoAck, exclusive, noLocal, noWait, nil)
	if err != nil {
		return fmt.Errorf("consume %q: %w", l.queue, err)
	}
	return nil
}

// ended returns why the consumer has ended. The library reports the reason of the end of its
// channel or connection before it closes the deliveries.
func (l *lane) ended() error {
	select {
	case reason := <-l.refusals:
		if reason != nil {
			return fmt.Errorf("consume %q: %w: %w", l.queue, errConsumerEnded, reason)
		}
	default:
	}
	return fmt.Errorf("consume %q: %w", l.queue, errConsumerEnded)
}

// receive keeps a delivery, or lets it rest. It must not block, or the connection stops reading.
func (l *lane) receive(d amqp.Delivery) {
	p := &parcel{lane: l, tag: d.DeliveryTag, bytes: wire.Held(d), received: time.Now()}
	l.acks.took(p.tag)
	l.mu.Lock()
	l.received = true
	keep := l.fits(l.bytes, p) && (d.Redelivered && l.line == nil || !l.taken(p.received))
	if keep {
		l.bytes += p.bytes
		l.returning = max(0, l.returning-p.bytes)
	} else {
		l.resting = append(l.resting, p)
	}
	l.mu.Unlock()
	if keep {
		l.arrived.add(arrival{p, d})
	}
}

// fits reports whether there is room for p beside a number of bytes. Alone p always fits.
func (l *lane) fits(bytes int, p *parcel) bool { return bytes == 0 || bytes+p.bytes <= l.maxBytes }

// taken reports whether the free room is reserved for earlier deliveries. Otherwise small newcomers
// would leave a large message no room for ever.
func (l *lane) taken(now time.Time) bool {
	return l.expected(now) > 0 || slices.ContainsFunc(l.resting, waits)
}

func waits(p *parcel) bool { return !p.stranded.Load() }

// expected returns the number of bytes that were handed back and should come again. They may go to
// another verifier, so no room is reserved for them for long.
func (l *lane) expected(now time.Time) int {
	if now.Sub(l.handedBack) > returnPatience {
		l.returning = 0
	}
	return l.returning
}

// wakeUp hands back resting deliveries: as many as there is room for, and any that are too old.
func (l *lane) wakeUp(ctx context.Context) error {
	ticker := time.NewTicker(restInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			l.acks.handBack(l.rested(now)...)
		}
	}
}

// rested removes the resting deliveries to hand back, and returns their tags: in the order of
// arrival, up to the first that does not fit.
func (l *lane) rested(now time.Time) (tags []uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bytes, behind := l.bytes+l.expected(now), false
	l.resting = slices.DeleteFunc(l.resting, func(p *parcel) bool {
		room := waits(p) && !behind && l.fits(bytes, p)
		behind = behind || waits(p) && !room
		if !room && now.Sub(p.received) < l.handBack {
			return false
		}
		if room {
			bytes += p.bytes
			l.returning += p.bytes
			l.handedBack = now
		}
		tags = append(tags, p.tag)
		return true
	})
	return tags
}

// finish acks at the end all messages that are done, and hands back the rest. In an ordered queue
// the end of the channel hands back.
func (l *lane) finish() error {
	if l.line != nil {
		return l.acks.leave()
	}
	return l.acks.finish()
}

// full reports whether the queue may contain messages for which the lane has no room.
func (l *lane) full() bool { return l.crowded() || l.short() }

// crowded reports whether the lane holds as many messages as it may.
func (l *lane) crowded() bool { return int(l.open.Load()) >= l.prefetch }

// short reports whether the lane lacks room for a delivery.
func (l *lane) short() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.resting, waits)
}

// empty reports whether the lane has no unacked delivery.
func (l *lane) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes == 0 && len(l.resting) == 0
}

func (l *lane) hasReceived() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.received
}

func (l *lane) keptBytes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

// stranded counts the deliveries that rest because one of their messages is too large for the
// broker.
func (l *lane) stranded() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.resting {
		if p.stranded.Load() {
			n++
		}
	}
	return n
}

// waitRoom waits until the lane holds fewer messages than it may: groups could bring many more than
// the prefetch count. It returns false if ctx ends.
func (l *lane) waitRoom(ctx context.Context) bool {
	for l.crowded() {
		select {
		case <-l.freed:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// took sets the number of messages in a parcel.
func (l *lane) took(p *parcel, messages int) {
	p.open.Store(int32(messages))
	p.single = messages == 1
	l.open.Add(int64(messages))
}

// done removes messages from the lane's count, and acks, hands back or rests the parcels that have
// ended.
func (l *lane) done(messages int, ended []*parcel) {
	if messages == 0 && len(ended) == 0 {
		return
	}
	var tags, back []uint64
	l.mu.Lock()
	for _, p := range ended {
		l.bytes -= p.bytes
		switch {
		case p.stranded.Load():
			l.resting = append(l.resting, p)
		case p.back.Load():
			back = append(back, p.tag)
		default:
			tags = append(tags, p.tag)
		}
	}
	l.mu.Unlock()
	l.open.Add(-int64(messages))
	wake(l.freed)
	if len(tags) > 0 {
		l.acks.done(tags...)
	}
	if len(back) > 0 {
		l.acks.handBack(back...)
	}
}
