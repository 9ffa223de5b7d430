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
	// groupBytes bounds the records in one group. A message of more than a third of it goes alone,
	// since the broker's cost is then per byte.
	groupBytes = 24 << 10
	// maxPublishers is how many publications may be under way at once. Meanwhile messages of other
	// calls gather for the next one.
	maxPublishers = 1
	// earlyBytes bounds the bytes under way of transactions that stage early. Without it, transactions
	// that stage, roll back and never wait could accumulate them. Each staging counts as at least
	// earlyLeast.
	earlyBytes = 16 << 20
	earlyLeast = 8 << 10
)

// A stager publishes the messages of transactions, and combines them: while a publication waits for
// its confirms, the messages of other transactions gather in the next one. If no publication is
// under way, no message waits.
//
// Every transaction waits for the confirms of the publication that contains its messages (rule 2 of
// package bridge). If a publication fails, all of its transactions fail; each of them rolls back
// and may try again.
type stager struct {
	ledger  uuid.UUID
	queue   bridge.Target
	broker  Broker
	timeout time.Duration
	packing wire.Packing // the largest groups, see bounds
	limit   *wire.SizeLimit
	ordered bool    // its queue is ordered: publications go one after the other
	outage  *outage // notified of the end of each publication, unless the queue is ordered
	count   *counters

	mu         sync.Mutex
	next       []*publication // to be published in this order; messages gather in the last one
	publishers int
	underWay   int // bytes of all publications, counted by begin
}

// A Broker has the methods of *bridge.Broker that a Sender calls. Package sendertest has another
// one, for unit tests.
type Broker interface {
	Publish(ctx context.Context, messages []bridge.Outgoing) error
	Blocked() string
	Done() <-chan struct{} // closed when the Broker is closed
}

// A batch contains the messages that one call stages. Their records are encoded when it is made,
// since the messages belong to the caller, who may change them afterwards.
type batch struct {
	ids     []uuid.UUID // of the records
	records [][]byte
	alone   bool // it gains nothing from a group
}

func (b *batch) add(id uuid.UUID, record []byte) {
	b.ids = append(b.ids, id)
	b.records = append(b.records, record)
}

// A publication is a batch that travels alone, or the batches that gathered while
// another was under way. In an ordered queue it has as many batches as fit into a group. A single
// batch that does not fit is published group by group, in turns with other publications: so no
// transaction waits for more confirms than necessary.
type publication struct {
	records [][]byte       // records that are still to be published
	size    int            // of the records
	bytes   int            // counted by begin
	ctx     *callerContext // of a batch that travels alone
	begun   time.Time      // when it began to wait for its turn
	callers int            // number of callers that wait for it
	done    chan struct{}
	err     error // valid once done is closed
}

// begin starts publishing a batch, and does not wait for it. A publication's time begins when it is
// published, so it is done within twice the timeout: the timeout of the previous publication, and
// its own. In an ordered queue that is true of each of its groups. If no caller waits for the batch
// yet and too much is under way, begin returns nil.
func (s *stager) begin(ctx context.Context, b batch, waitedFor bool) (*publication, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("publish: nothing sent: %w: %w", bridge.ErrUnavailable, context.Cause(ctx))
	}
	size := 0
	for _, record := range b.records {
		size += len(record)
	}
	bytes := max(size, earlyLeast)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !waitedFor && s.underWay > 0 && s.underWay+bytes > earlyBytes {
		return nil, nil
	}
	s.underWay += bytes
	if b.alone {
		alone := &publication{records: b.records, bytes: bytes, ctx: newCallerContext(s.timeout), done: make(chan struct{})}
		go s.publishAlone(alone)
		return alone, nil
	}
	return s.join(b.records, size, bytes), nil
}

// wait waits until the broker has confirmed a whole publication, or for its first failure. The
// error names first, the caller's first message, and not the group.
func (s *stager) wait(ctx context.Context, joined *publication, first uuid.UUID) error {
	if joined.ctx != nil {
		stop := context.AfterFunc(ctx, func() { joined.ctx.endWith(ctx) })
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
	case <-joined.done: // even if the context has ended since
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

// late returns the error of a caller that cannot wait for its publication any longer.
func (s *stager) late(cause error) error {
	if reason := s.broker.Blocked(); reason != "" {
		return fmt.Errorf("%w: %w: %s", bridge.ErrUnconfirmed, bridge.ErrBlocked, reason)
	}
	return fmt.Errorf("%w in time: %w", bridge.ErrUnconfirmed, cause)
}

// join adds records to a publication, and makes sure that run is running. The caller holds mu.
func (s *stager) join(records [][]byte, size, bytes int) *publication {
	joined := s.gathering(len(records), size)
	joined.records = append(joined.records, records...)
	joined.size += size
	joined.bytes += bytes
	joined.callers++
	if s.publishers < maxPublishers {
		s.publishers++
		go s.run()
	}
	return joined
}

// gathering returns the publication that a number of records with a total size joins.
func (s *stager) gathering(records, size int) *publication {
	if n := len(s.next); n > 0 {
		last := s.next[n-1]
		if !s.ordered || s.bounds().Fits(len(last.records)+records, last.size+size) {
			return last
		}
	}
	next := &publication{begun: time.Now(), done: make(chan struct{})}
	s.next = append(s.next, next)
	return next
}

// run publishes one publication after the other until there is none. Each has the full timeout, and
// does not end with the context of one caller, because a caller that gives up must not cancel the
// others' messages.
func (s *stager) run() {
	for {
		s.mu.Lock()
		if len(s.next) == 0 {
			s.publishers--
			s.mu.Unlock()
			return
		}
		p := s.next[0]
		s.next = slices.Delete(s.next, 0, 1)
		s.mu.Unlock()
		if s.ordered {
			s.publishGroup(p)
			continue
		}
		noteEnd := s.outage.watch(p.size)
		err := s.publishInTime(p.records, s.bounds())
		noteEnd(err, false)
		s.finish(p, err)
	}
}

// publishGroup publishes the first group of a publication in an ordered queue. The rest waits for
// its next turn, behind publications that have gathered meanwhile: a large transaction must not
// make the others wait for all of it. A group is published only after the previous one is
// confirmed: two at once may change places, because a Publisher may change its channel between
// them. A publication that has waited for the timeout, or that no caller waits for any more, is not
// published.
func (s *stager) publishGroup(p *publication) {
	s.mu.Lock()
	left := p.callers == 0
	s.mu.Unlock()
	if left || time.Since(p.begun) > s.timeout {
		s.finish(p, &bridge.PublishError{Err: s.late(context.DeadlineExceeded)})
		return
	}
	bounds := s.bounds()
	n, size := bounds.First(p.records)
	err := s.publishInTime(p.records[:n], bounds)
	if err != nil || n == len(p.records) {
		s.finish(p, err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.records = p.records[n:]
	p.size -= size
	p.begun = time.Now()
	s.next = append(s.next, p)
}

func (s *stager) publishInTime(records [][]byte, bounds wire.Packing) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	return s.publish(ctx, records, bounds)
}

// bounds returns the bounds of the next group. After a broker has refused a group because of its
// max_message_size, groups are smaller.
func (s *stager) bounds() wire.Packing { return s.limit.Bound(s.packing) }

// publishAlone publishes the batch of one caller. It ends when the caller gives it up.
func (s *stager) publishAlone(alone *publication) {
	defer alone.ctx.release()
	noteEnd := s.outage.watch(alone.bytes)
	err := s.publish(alone.ctx, alone.records, wire.Packing{Records: 1})
	if alone.ctx.givenUp() {
		noteEnd(context.Canceled, false) // the caller's end is no failure of the broker
	} else {
		noteEnd(err, false)
	}
	s.finish(alone, err)
}

func (s *stager) publish(ctx context.Context, records [][]byte, packing wire.Packing) error {
	groups, err := packing.Pack(s.ledger, records)
	if err != nil {
		return err
	}
	s.count.addStaged(records, packing)
	began := time.Now()
	err = s.broker.Publish(ctx, s.outgoing(groups))
	s.count.addResult(len(records), time.Since(began), err)
	s.limit.Learn(err)
	return err
}

// waiting returns the bytes that are to be published or confirmed, counted by begin.
func (s *stager) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.underWay
}

// finish passes the result of a publication to its waiting callers.
func (s *stager) finish(p *publication, err error) {
	s.mu.Lock()
	s.underWay -= p.bytes
	p.records = nil // waiting callers still hold the publication
	s.mu.Unlock()
	p.err = err
	close(p.done)
}

func (s *stager) outgoing(messages []amqp.Publishing) []bridge.Outgoing {
	out := make([]bridge.Outgoing, len(messages))
	for i, m := range messages {
		out[i] = bridge.Outgoing{Target: s.queue, Publishing: m}
	}
	return out
}

// A callerContext is the context of a publication that travels alone. It ends after the timeout, or
// when its caller's context ends.
type callerContext struct {
	context.Context
	cancel  context.CancelCauseFunc
	release context.CancelFunc
}

func newCallerContext(timeout time.Duration) *callerContext {
	ctx, cancel := context.WithCancelCause(context.Background())
	ctx, release := context.WithTimeout(ctx, timeout)
	return &callerContext{ctx, cancel, release}
}

// givenUp is the cause of a callerContext that has ended with a caller's context.
type givenUp struct {
	error // the cause of that context
	how   error
}

func (g givenUp) Unwrap() error { return g.error }

func (c *callerContext) endWith(by context.Context) { c.cancel(givenUp{context.Cause(by), by.Err()}) }

// givenUp reports whether the caller has given the publication up.
func (c *callerContext) givenUp() bool { return errors.As(context.Cause(c.Context), new(givenUp)) }

// Err distinguishes a caller's deadline from its cancellation, since bridge.Retryable does.
func (c *callerContext) Err() error {
	if by := (givenUp{}); errors.As(context.Cause(c.Context), &by) {
		return by.how
	}
	return c.Context.Err()
}
