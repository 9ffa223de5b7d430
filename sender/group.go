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
	deadline time.Time
	messages []amqp.Publishing
	done     chan struct{}
	err      error // valid once done is closed
}

// stage publishes the messages and waits until the broker has confirmed all of
// them, or for the first failure.
func (s *stager) stage(ctx context.Context, messages []amqp.Publishing) error {
	if s.alone(messages) {
		ctx, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		return s.broker.Publish(ctx, s.outgoing(messages))
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("publish: nothing sent: %w: %w", bridge.ErrUnavailable, context.Cause(ctx))
	}
	joined := s.join(messages)
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

// join adds messages to the next shipment, and sees to it that it gets under way.
func (s *stager) join(messages []amqp.Publishing) *shipment {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = &shipment{deadline: time.Now().Add(s.timeout), done: make(chan struct{})}
	}
	joined := s.next
	joined.messages = append(joined.messages, messages...)
	if s.shippers < maxShippers {
		s.shippers++
		go s.ship()
	}
	return joined
}

// ship publishes one shipment after the other until there is none. It outlives no
// shipment's deadline, and is nobody's in particular: a caller that gives up must
// not take the others' messages with it.
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
		ctx, cancel := context.WithDeadline(context.Background(), shipment.deadline)
		shipment.err = s.broker.Publish(ctx, s.outgoing(s.grouped(shipment.messages)))
		cancel()
		close(shipment.done)
	}
}

// grouped puts messages together into as few staged ones as their limits allow.
func (s *stager) grouped(messages []amqp.Publishing) []amqp.Publishing {
	var out []amqp.Publishing
	var records [][]byte
	var first amqp.Publishing // of the group that is being made
	size := 0
	seal := func() {
		switch len(records) {
		case 0:
			return
		case 1:
			out = append(out, first) // no group: this is what other senders write
		default:
			out = append(out, bridge.Group(s.ledger, records...))
		}
		records, size = nil, 0
	}
	for _, m := range messages {
		record := bridge.EncodeRecord(m)
		if len(records) == s.limit || size+len(record) > groupBytes {
			seal()
		}
		if len(records) == 0 {
			first = m
		}
		records = append(records, record)
		size += len(record)
	}
	seal()
	return out
}

func (s *stager) outgoing(messages []amqp.Publishing) []bridge.Outgoing {
	out := make([]bridge.Outgoing, len(messages))
	for i, m := range messages {
		out[i] = bridge.Outgoing{Target: s.queue, Publishing: m}
	}
	return out
}
