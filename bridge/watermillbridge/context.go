package watermillbridge

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
)

// A Tx is a transaction that collects messages. Its owner commits only if all of them are safe. It is
// the *sender.Tx of sender.InTx, or the transaction of pgxsender.InTx, gormsender.InTx or
// bunsender.InTx.
type Tx interface {
	Send(messages ...bridge.Message) ([]uuid.UUID, error)
}

type txKey struct{}

// WithTx returns a context for messages that a Publisher sends in tx.
func WithTx(ctx context.Context, tx Tx) context.Context { return context.WithValue(ctx, txKey{}, tx) }

// WithSendTx is WithTx for a transaction that you begin and commit yourself, with any library
// (bridge.SQL and pgxbridge.Tx return a bridge.Tx). Publish then calls s.SendTx with ctx, and returns
// when the messages are recorded, and confirmed or carried. After an error you must roll back.
func WithSendTx(ctx context.Context, s *sender.Sender, tx bridge.Tx) context.Context {
	return WithTx(ctx, ownTx{ctx, s, tx})
}

type ownTx struct {
	ctx    context.Context
	sender *sender.Sender
	tx     bridge.Tx
}

func (o ownTx) Send(messages ...bridge.Message) ([]uuid.UUID, error) {
	return o.sender.SendTx(o.ctx, o.tx, messages...)
}

// noSender is the Tx of a Subscriber that has no sender.
type noSender struct{}

var errNoSender = errors.New("the subscriber of this message has no sender: set SubscriberOptions.Sender")

func (noSender) Send(...bridge.Message) ([]uuid.UUID, error) { return nil, errNoSender }

type attemptKey struct{}

// An attempt is a message that a Subscriber has delivered, with its transaction.
type attempt struct {
	tx       *sql.Tx
	delivery amqp.Delivery

	mu     sync.Mutex
	reason error // of the Nack
}

func attemptOf(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	return a
}

// TxFromContext returns the transaction of a message that a Subscriber has delivered, or nil if ctx is
// not the message's. The handler works in it, before it acks or nacks the message, and must neither
// commit it nor roll it back.
func TxFromContext(ctx context.Context) *sql.Tx {
	if a := attemptOf(ctx); a != nil {
		return a.tx
	}
	return nil
}

// DeliveryFromContext returns the delivery of a message that a Subscriber has delivered: properties such
// as the content type, and headers that are not strings. The delivery cannot be acked or rejected.
func DeliveryFromContext(ctx context.Context) (d amqp.Delivery, ok bool) {
	if a := attemptOf(ctx); a != nil {
		return a.delivery, true
	}
	return d, false
}

// Nack nacks a message of a Subscriber, with the reason. As in package idempotency, an
// idempotency.RetryLater, or an error of the broker or the database, does not count as a failed
// attempt, and a backoff.Permanent makes the attempt the last one. Nack returns false if the message
// was acked before.
func Nack(msg *message.Message, reason error) bool {
	because(msg, reason)
	return msg.Nack()
}

// Reasons is a middleware for a router's handlers: the error of a handler is the reason of the Nack.
func Reasons(handle message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := handle(msg)
		because(msg, err)
		return produced, err
	}
}

func because(msg *message.Message, reason error) {
	if a := attemptOf(msg.Context()); a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.reason = reason
	}
}

var errNacked = errors.New("the message was nacked")

func (a *attempt) nacked() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reason != nil {
		return a.reason
	}
	return errNacked
}
