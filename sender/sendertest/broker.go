package sendertest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// Failures for Sender.FailPublish.
var (
	// ErrOut: the broker is unavailable.
	ErrOut = fmt.Errorf("sendertest: %w", bridge.ErrUnavailable)
	// ErrRefused: the broker closes the channel because a message is too large for it.
	ErrRefused error = &amqp.Error{Code: amqp.PreconditionFailed, Reason: "PRECONDITION_FAILED - sendertest", Server: true, Recover: true}
)

// A broker stores the staged messages.
type broker struct {
	mu      sync.Mutex
	failure error // nil: it confirms all
	done    chan struct{}
	staged  map[uuid.UUID]bridge.Message
}

func (b *broker) Publish(_ context.Context, messages []bridge.Outgoing) error {
	select {
	case <-b.done:
		return fmt.Errorf("publish: %w: the test has ended: %w", bridge.ErrUnavailable, context.Canceled)
	default:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case errors.Is(b.failure, bridge.ErrUnavailable):
		return fmt.Errorf("publish: nothing sent: %w", b.failure)
	case bridge.Refusal(b.failure) != nil:
		return &bridge.PublishError{Target: messages[0].Target, Err: fmt.Errorf("%w: %w", bridge.ErrUnconfirmed, b.failure)}
	case b.failure != nil:
		return &bridge.PublishError{Target: messages[0].Target, Err: b.failure}
	}
	for _, m := range messages {
		if err := b.take(m.Publishing); err != nil {
			return err
		}
	}
	return nil
}

func (b *broker) take(p amqp.Publishing) error {
	members, err := wire.Members(amqp.Delivery{
		Headers: p.Headers, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode,
		Priority: p.Priority, CorrelationId: p.CorrelationId, ReplyTo: p.ReplyTo, Expiration: p.Expiration,
		MessageId: p.MessageId, Timestamp: p.Timestamp, Type: p.Type, UserId: p.UserId, AppId: p.AppId, Body: p.Body,
	})
	if err != nil {
		return err
	}
	for _, d := range members {
		staged, err := wire.Parse(d)
		if err != nil {
			return err
		}
		b.staged[staged.ID] = staged.Message
	}
	return nil
}

// Blocked returns "": the failure bridge.ErrBlocked comes from Publish.
func (*broker) Blocked() string { return "" }

func (b *broker) Done() <-chan struct{} { return b.done }

func (b *broker) message(id uuid.UUID) (bridge.Message, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	message, ok := b.staged[id]
	return message, ok
}

func (b *broker) failWith(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failure = err
}

func (b *broker) close() { close(b.done) }
