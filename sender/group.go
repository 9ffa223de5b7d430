package sender

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

const (
	// groupBytes bounds the records in one group. A message of more than a third of it goes
	// alone, since the broker's cost is then per byte.
	groupBytes = 24 << 10
	// maxShippers is how many shipments may be under way at once. While they are,
	// what transactions stage gathers for the next one.
	maxShippers = 1
	// earlyBytes bounds what is under way early, so that transactions that stage, roll
	// back and never wait cannot pile it up. Each staging counts as earlyLeast at least.
	earlyBytes = 16 << 20
	earlyLeast = 8 << 10
)

// A stager publishes what transactions stage, and lets messages travel together: while a
// shipment waits for its confirms, the messages of other transactions gather in the next one.
// If nothing is under way, nothing waits.
//
// Every transaction waits for the confirms of the shipment that carries its messages (rule 2 of
// package bridge). If a shipment fails, all of its transactions fail; each of them rolls back
// and may try again.
type stager struct {
	ledger  uuid.UUID
	queue   bridge.Target
	broker  Broker
	timeout time.Duration
	limit   int     // messages in a group
	ordered bool    // they go one after the other
	outage  *outage // learns how shipments end, unless they are ordered
	count   *counters

	mu       sync.Mutex
	next     []*shipment // to be published, in this order; the last one gathers
	shippers int
	underWay int // bytes of all shipments, as begin counts them
}

// A Broker is what a Sender needs of a *bridge.Broker, whose methods these are. Package sendertest
// has another one, for unit tests.
type Broker interface {
	Publish(ctx context.Context, messages []bridge.Outgoing) error
	Blocked() string
	Done() <-chan struct{} // closed when the Broker is closed
}

// A cargo is what one call stages. The records are encoded when it is made, since the messages
// belong to the caller, who may change them afterwards.
type cargo struct {
	ids     []uuid.UUID // of the records
	records [][]byte
	alone   bool // it gains nothing from company
}

func (c *cargo) add(id uuid.UUID, record []byte) {
	c.ids = append(c.ids, id)
	c.records = append(c.records, record)
}

// A shipment is what is published at once: a cargo that travels alone, or those that
// gathered while others were under way. In an ordered queue it is what fits into a group, or
// one cargo that does not, which is published group by group, in turns with others: so no
// transaction waits for more confirms than it must.
type shipment struct {
	records [][]byte  // those that are still to be published
	size    int       // of the records
	bytes   int       // as begin counts them
	leash   *leash    // of a cargo that travels alone
	begun   time.Time // when it began to wait for its turn
	callers int       // who wait for it
	done    chan struct{}
	err     error // valid once done is closed
}

// begin has a cargo published, and does not wait for it. A shipment's time begins when it is
// shipped, so it is done within twice the timeout: that of the shipment before it, and its
// own. In an ordered queue that is true of each group of it. It returns nil if nobody waits for
// the cargo yet and too much is under way.
func (s *stager) begin(ctx context.Context, c cargo, waitedFor bool) (*shipment, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("publish: nothing sent: %w: %w", bridge.ErrUnavailable, context.Cause(ctx))
	}
	size := 0
	for _, record := range c.records {
		size += len(record)
	}
	bytes := max(size, earlyLeast)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !waitedFor && s.underWay > 0 && s.underWay+bytes > earlyBytes {
		return nil, nil
	}
	s.underWay += bytes
	if c.alone {
		alone := &shipment{records: c.records, bytes: bytes, leash: newLeash(s.timeout), done: make(chan struct{})}
		go s.shipAlone(alone)
		return alone, nil
	}
	return s.join(c.records, size, bytes), nil
}

// wait waits until the broker has confirmed a whole shipment, or for the first failure. The
// message to name is one of the caller's, not the group.
func (s *stager) wait(ctx context.Context, joined *shipment, first uuid.UUID) error {
	if joined.leash != nil {
		stop := context.AfterFunc(ctx, func() { joined.leash.end(ctx) })
		defer stop()
		<-joined.done
		return joined.err
	}
	select {
	case <-joined.done:
	case <-ctx.Done():
	}
	var err error
	select {
	case <-joined.done: // also where the context has ended since
		err = joined.err
	default:
		err = &bridge.PublishError{Err: s.late(context.Cause(ctx))}
		s.mu.Lock()
		joined.callers--
		s.mu.Unlock()
	}
	if failed := new(bridge.PublishError); errors.As(err, &failed) {
		return &bridge.PublishError{ID: first, Target: s.queue, Err: failed.Err}
	}
	return err
}

// late is the error of a caller that cannot wait for its shipment any longer.
func (s *stager) late(cause error) error {
	if reason := s.broker.Blocked(); reason != "" {
		return fmt.Errorf("%w: %w: %s", bridge.ErrUnconfirmed, bridge.ErrBlocked, reason)
	}
	return fmt.Errorf("%w in time: %w", bridge.ErrUnconfirmed, cause)
}

// join adds records to a shipment, and sees to it that it gets under way. The caller holds
// mu.
func (s *stager) join(records [][]byte, size, bytes int) *shipment {
	joined := s.gathering(len(records), size)
	joined.records = append(joined.records, records...)
	joined.size += size
	joined.bytes += bytes
	joined.callers++
	if s.shippers < maxShippers {
		s.shippers++
		go s.ship()
	}
	return joined
}

// gathering is the shipment that so many records join, of that size.
func (s *stager) gathering(records, size int) *shipment {
	if n := len(s.next); n > 0 {
		last := s.next[n-1]
		if !s.ordered || len(last.records)+records <= s.limit && last.size+size <= groupBytes {
			return last
		}
	}
	next := &shipment{begun: time.Now(), done: make(chan struct{})}
	s.next = append(s.next, next)
	return next
}

// ship publishes one shipment after the other until there is none. Each has the timeout, and
// does not end with the context of one caller: a caller that gives up must not take the others'
// messages with it.
func (s *stager) ship() {
	for {
		s.mu.Lock()
		if len(s.next) == 0 {
			s.shippers--
			s.mu.Unlock()
			return
		}
		shipment := s.next[0]
		s.next = slices.Delete(s.next, 0, 1)
		s.mu.Unlock()
		if s.ordered {
			s.shipGroup(shipment)
			continue
		}
		learn := s.outage.watch(shipment.size)
		err := s.publishInTime(shipment.records)
		learn(err, false)
		s.end(shipment, err)
	}
}

// shipGroup publishes the first group of a shipment in an ordered queue. What is left waits
// for its next turn, behind what has gathered meanwhile: a large transaction must not make
// the others wait for all of it. No group is published before the one before it is
// confirmed: two at once may change places, as a Publisher may go on over another channel
// between them. What has waited for the timeout, or for which nobody waits any more, is not
// published.
func (s *stager) shipGroup(shipment *shipment) {
	s.mu.Lock()
	left := shipment.callers == 0
	s.mu.Unlock()
	if left || time.Since(shipment.begun) > s.timeout {
		s.end(shipment, &bridge.PublishError{Err: s.late(context.DeadlineExceeded)})
		return
	}
	n, size := firstGroup(shipment.records, s.limit)
	err := s.publishInTime(shipment.records[:n])
	if err != nil || n == len(shipment.records) {
		s.end(shipment, err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	shipment.records = shipment.records[n:]
	shipment.size -= size
	shipment.begun = time.Now()
	s.next = append(s.next, shipment)
}

func (s *stager) publishInTime(records [][]byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	return s.publish(ctx, records, s.limit)
}

// shipAlone publishes the shipment of one caller, which ends when that one gives it up.
func (s *stager) shipAlone(alone *shipment) {
	defer alone.leash.release()
	learn := s.outage.watch(alone.bytes)
	err := s.publish(alone.leash, alone.records, 1)
	if alone.leash.givenUp() {
		learn(context.Canceled, false) // which says nothing about the broker
	} else {
		learn(err, false)
	}
	s.end(alone, err)
}

func (s *stager) publish(ctx context.Context, records [][]byte, limit int) error {
	groups, err := s.grouped(records, limit)
	if err != nil {
		return err
	}
	s.count.publish(records, limit)
	began := time.Now()
	err = s.broker.Publish(ctx, s.outgoing(groups))
	s.count.published(len(records), time.Since(began), err)
	return err
}

// waiting returns the bytes that are to be published or to be confirmed, as begin counts them.
func (s *stager) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.underWay
}

// end tells those who wait what became of a shipment.
func (s *stager) end(shipment *shipment, err error) {
	s.mu.Lock()
	s.underWay -= shipment.bytes
	shipment.records = nil // who has still to wait holds the shipment
	s.mu.Unlock()
	shipment.err = err
	close(shipment.done)
}

// grouped puts records together into as few staged messages as their limits allow. A single
// record becomes an ordinary staged message, no group.
func (s *stager) grouped(records [][]byte, limit int) (out []amqp.Publishing, err error) {
	for len(records) > 0 {
		n, _ := firstGroup(records, limit)
		next := wire.Group(s.ledger, records[:n]...)
		if n == 1 {
			if next, err = wire.Alone(s.ledger, records[0]); err != nil {
				return nil, err
			}
		}
		out = append(out, next)
		records = records[n:]
	}
	return out, nil
}

// firstGroup is how many records go into the next staged message, and their size.
func firstGroup(records [][]byte, limit int) (n, size int) {
	n, size = 1, len(records[0])
	for n < min(len(records), limit) && size+len(records[n]) <= groupBytes {
		size += len(records[n])
		n++
	}
	return n, size
}

func (s *stager) outgoing(messages []amqp.Publishing) []bridge.Outgoing {
	out := make([]bridge.Outgoing, len(messages))
	for i, m := range messages {
		out[i] = bridge.Outgoing{Target: s.queue, Publishing: m}
	}
	return out
}

// A leash is the context of a shipment that travels alone. It ends after the timeout, or when
// the context of its caller ends.
type leash struct {
	context.Context
	cancel  context.CancelCauseFunc
	release context.CancelFunc
}

func newLeash(timeout time.Duration) *leash {
	ctx, cancel := context.WithCancelCause(context.Background())
	ctx, release := context.WithTimeout(ctx, timeout)
	return &leash{ctx, cancel, release}
}

// givenUp is the cause of a leash that has ended with a caller's context.
type givenUp struct {
	error // the cause of that context
	how   error
}

func (g givenUp) Unwrap() error { return g.error }

func (l *leash) end(by context.Context) { l.cancel(givenUp{context.Cause(by), by.Err()}) }

// givenUp tells whether the caller has given the shipment up.
func (l *leash) givenUp() bool { return errors.As(context.Cause(l.Context), new(givenUp)) }

// Err tells a caller's deadline from its cancellation, since bridge.Retryable does.
func (l *leash) Err() error {
	if by := (givenUp{}); errors.As(context.Cause(l.Context), &by) {
		return by.how
	}
	return l.Context.Err()
}
