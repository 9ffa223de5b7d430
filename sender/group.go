package sender

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

const (
	// groupBytes bounds the records in one group. A message of more than a third of
	// it goes alone: the broker's cost is per byte then.
	groupBytes = 24 << 10
	// maxShippers is how many shipments may be under way at once. While they are,
	// what transactions stage gathers for the next one.
	maxShippers = 1
)

// A stager publishes what transactions stage, and lets the messages of one moment
// travel together: while shipments wait for their confirms, those of other
// transactions gather in the next one. When nothing is under way nothing waits.
//
// Every transaction waits for the confirm of whatever carries its own messages
// (rule 2 of package bridge). A shipment that fails, fails for all of its
// transactions; each of them rolls back and may try again.
type stager struct {
	ledger  uuid.UUID
	queue   bridge.Target
	broker  *bridge.Broker
	timeout time.Duration
	limit   int // messages in a group

	mu       sync.Mutex
	next     *shipment // gathers; nil if nobody waits for it
	shippers int
}

// A shipment is what gathers while others are under way. Its transactions wait for
// it, so it holds no more than they have staged.
type shipment struct {
	// records are encoded on joining: the messages are their callers', and a caller
	// whose context ends does not wait until its own has been read.
	records [][]byte
	done    chan struct{}
	err     error // valid once done is closed
}

// stage publishes the messages and waits until the broker has confirmed all of
// them, or for the first failure. A shipment's time begins when it is shipped, so it
// waits for the timeout at most twice: for the shipment before it, and for its own.
func (s *stager) stage(ctx context.Context, messages []amqp.Publishing) error {
	if s.alone(messages) {
		ctx, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		return s.broker.Publish(ctx, s.outgoing(messages))
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("publish: nothing sent: %w: %w", bridge.ErrUnavailable, context.Cause(ctx))
	}
	records := make([][]byte, len(messages))
	for i, m := range messages {
		records[i] = wire.EncodeRecord(m)
	}
	joined := s.join(records)
	var err error
	select {
	case <-joined.done:
		err = joined.err
	case <-ctx.Done():
		err = &bridge.PublishError{Err: s.late(ctx)}
	}
	// The message to name is one of this transaction, not the group.
	if failed := new(bridge.PublishError); errors.As(err, &failed) {
		id, _ := uuid.Parse(messages[0].MessageId)
		return &bridge.PublishError{ID: id, Target: s.queue, Err: failed.Err}
	}
	return err
}

// late is the error of a caller that cannot wait for its shipment any longer.
func (s *stager) late(ctx context.Context) error {
	if reason := s.broker.Blocked(); reason != "" {
		return fmt.Errorf("%w: %w: %s", bridge.ErrUnconfirmed, bridge.ErrBlocked, reason)
	}
	return fmt.Errorf("%w in time: %w", bridge.ErrUnconfirmed, context.Cause(ctx))
}

// alone tells whether the messages gain nothing from company.
func (s *stager) alone(messages []amqp.Publishing) bool {
	for _, m := range messages {
		if len(m.Body) > groupBytes/3 {
			return true
		}
	}
	return s.limit == 1
}

// join adds records to the next shipment, and sees to it that it gets under way.
func (s *stager) join(records [][]byte) *shipment {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = &shipment{done: make(chan struct{})}
	}
	joined := s.next
	joined.records = append(joined.records, records...)
	if s.shippers < maxShippers {
		s.shippers++
		go s.ship()
	}
	return joined
}

// ship publishes one shipment after the other until there is none. Each has the
// timeout, and is nobody's in particular: a caller that gives up must not take the
// others' messages with it.
func (s *stager) ship() {
	for {
		s.mu.Lock()
		shipment := s.next
		s.next = nil
		if shipment == nil {
			s.shippers--
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		shipment.err = s.publish(shipment.records)
		close(shipment.done)
	}
}

func (s *stager) publish(records [][]byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	groups, err := s.grouped(records)
	if err != nil {
		return err
	}
	return s.broker.Publish(ctx, s.outgoing(groups))
}

// grouped puts records together into as few staged messages as their limits allow. One
// that is left alone becomes what other senders write, no group.
func (s *stager) grouped(records [][]byte) (out []amqp.Publishing, err error) {
	for len(records) > 0 {
		n, size := 1, len(records[0])
		for n < min(len(records), s.limit) && size+len(records[n]) <= groupBytes {
			size += len(records[n])
			n++
		}
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

func (s *stager) outgoing(messages []amqp.Publishing) []bridge.Outgoing {
	out := make([]bridge.Outgoing, len(messages))
	for i, m := range messages {
		out[i] = bridge.Outgoing{Target: s.queue, Publishing: m}
	}
	return out
}
