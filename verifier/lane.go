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

// A lane is a consumer on a channel of its own, with its acks, and with the messages that
// it has brought.
//
// The broker bounds how many deliveries a consumer has unacked, and knows no bound in bytes
// (RabbitMQ's guide 'Consumer Prefetch'). So the lane keeps the content of no more than
// maxBytes. A delivery that exceeds it rests: only its tag is kept, until there is room.
// Then it is handed back, and comes again.
//
// So does a message that the broker takes nowhere, until it is too old to be held.
//
// The lane of an ordered queue hands nothing back, since that would change the order. What
// rests there comes again over the next channel (shard).
//
// All lanes share a connection. It reads about readAhead and one message before they receive.
type lane struct {
	queue    string
	prefetch int
	maxBytes int
	handBack time.Duration
	ch       *amqp.Channel
	acks     *acks

	line   *line // of an ordered queue, else nil
	opened time.Time

	deliveries <-chan amqp.Delivery
	cancels    <-chan string
	refusals   <-chan *amqp.Error // why the channel has ended

	arrived *gatherer[arrival] // not taken apart yet
	open    atomic.Int64       // messages taken apart and not done
	freed   chan struct{}

	mu       sync.Mutex
	received bool // anything
	bytes    int  // of the deliveries that are kept
	resting  []*parcel

	returning  int // bytes that were handed back, since there is room for them, and not come again
	handedBack time.Time
}

// A parcel is one unacked delivery: a message, or a group of them. It is acked
// when the last of them is done.
type parcel struct {
	lane     *lane
	tag      uint64
	bytes    int
	received time.Time
	single   bool         // no group
	open     atomic.Int32 // messages that are not done
	apart    atomic.Bool  // a member is in another queue and would be judged again
	stranded atomic.Bool  // the broker takes one of them nowhere
	back     atomic.Bool  // one of them could be moved nowhere: the delivery is handed back
}

type arrival struct {
	parcel   *parcel
	delivery amqp.Delivery
}

// restInterval is the time between looks for room for what rests. What was handed back at
// the last look should have come by then: else more would be handed back than fits.
const restInterval = 50 * time.Millisecond

// returnPatience is how long room is kept for what was handed back.
const returnPatience = 5 * restInterval

// readAhead is how many bytes of deliveries the connection reads before the lanes receive
// them.
const readAhead = 1 << 20

func newLane(queue string, prefetch, maxBytes int, handBack time.Duration, ch *amqp.Channel) *lane {
	return &lane{queue: queue, prefetch: prefetch, maxBytes: maxBytes, handBack: handBack, ch: ch,
		acks: newAcks(ch), arrived: newGatherer[arrival](), freed: make(chan struct{}, 1), opened: time.Now()}
}

// consume asks for deliveries. It must be done before acks.finish, which asks the broker
// something on the same channel: two questions at once end the channel.
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

// ended says why the consumer has ended. The library tells the reason of its channel's or
// connection's end before it ends the deliveries.
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

// receive keeps a delivery, or lets it rest. It must not block, or the
// connection stops reading.
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

// fits tells whether there is room for p beside so many bytes. Alone it always fits.
func (l *lane) fits(bytes int, p *parcel) bool { return bytes == 0 || bytes+p.bytes <= l.maxBytes }

// taken tells whether what room there is belongs to others, which have come before: small
// newcomers would leave none to a large message for ever.
func (l *lane) taken(now time.Time) bool {
	return l.expected(now) > 0 || slices.ContainsFunc(l.resting, waits)
}

func waits(p *parcel) bool { return !p.stranded.Load() }

// expected is how many bytes were handed back and should come again. They may go to
// another verifier, so nobody waits for them for long.
func (l *lane) expected(now time.Time) int {
	if now.Sub(l.handedBack) > returnPatience {
		l.returning = 0
	}
	return l.returning
}

// wakeUp hands back what rests: as much as there is room for, and what is too old.
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

// rested takes out what is to be handed back: in the order of arrival, up to the first that
// there is no room for.
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

// finish acks at the end all that is done, and hands back the rest. In an ordered queue the
// end of the channel does the latter.
func (l *lane) finish() error {
	if l.line != nil {
		return l.acks.leave()
	}
	return l.acks.finish()
}

// full tells whether others may be in the queue that the lane has no room for.
func (l *lane) full() bool { return l.crowded() || l.short() }

// crowded tells whether the lane holds as many messages as it may.
func (l *lane) crowded() bool { return int(l.open.Load()) >= l.prefetch }

// short tells whether the lane lacks room for what has been delivered.
func (l *lane) short() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.resting, waits)
}

// empty tells whether it has nothing unacked.
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

// waitRoom waits until the lane holds fewer messages than it may: groups could
// bring many more than the prefetch count. It returns false if ctx ends.
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

// took says of how many messages a parcel consists.
func (l *lane) took(p *parcel, messages int) {
	p.open.Store(int32(messages))
	p.single = messages == 1
	l.open.Add(int64(messages))
}

// done lets messages go, and those parcels be acked that they were the last of.
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
