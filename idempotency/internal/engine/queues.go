package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// The reasons in the dead queue.
const (
	DeadFailed = "failed"
	DeadTooOld = "too-old"
)

// A RetryQueue is a queue in which messages wait for a fixed time.
type RetryQueue struct {
	Name  string
	Delay time.Duration
}

// A publisher is a *bridge.Broker.
type publisher interface {
	Publish(ctx context.Context, messages []bridge.Outgoing) error
}

// Queues are idempotency.Queues.
type Queues struct {
	broker  publisher
	queue   string
	retries []RetryQueue
	log     *slog.Logger

	mu     sync.Mutex
	warned time.Time
}

// NewQueues returns the queues of a receiver, which must exist.
func NewQueues(broker *bridge.Broker, queue string, retries []RetryQueue, logger *slog.Logger) *Queues {
	return &Queues{broker: broker, queue: queue, retries: retries, log: logger.With("queue", queue)}
}

// DeadQueueOf returns the name of a receiver's dead queue.
func DeadQueueOf(queue string) string { return queue + ".dead" }

// publishLimit bounds the wait for a confirm. The delivery is held meanwhile.
const publishLimit = 30 * time.Second

// publish returns nil when the broker has the message in that queue.
func (q *Queues) publish(ctx context.Context, queue string, message amqp.Publishing) error {
	ctx, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	return q.broker.Publish(ctx, []bridge.Outgoing{{Target: bridge.Target{RoutingKey: queue}, Publishing: message}})
}

// DeadLetter publishes a message to the dead queue, with the reason, and returns nil when the
// broker has confirmed it. bridgectl dead list, show and replay work on such messages: a replay
// brings one back to the receiver's queue, with its attempts begun anew. If the message's own
// headers leave no room for the reason, it is published as a record (wire.DeadRecord).
//
// A Guard calls DeadLetter by Options.Queues. It also serves as Options.DeadLetter.
func (q *Queues) DeadLetter(ctx context.Context, d amqp.Delivery, reason error) error {
	const textLimit = 1000
	code, text := DeadFailed, strings.ToValidUTF8(reason.Error(), "\uFFFD")
	if errors.Is(reason, ErrTooOld) {
		code = DeadTooOld
	}
	attempts, _ := Attempt(ctx)
	letter := wire.ReceiverLetter(d, q.queue, amqp.Table{
		wire.HeaderDeadReason:   code,
		wire.HeaderDeadText:     strings.ToValidUTF8(text[:min(len(text), textLimit)], ""),
		wire.HeaderDeadAttempts: int64(attempts),
		wire.HeaderDeadAt:       time.Now().UTC().Format(time.RFC3339),
	})
	err := q.publish(ctx, DeadQueueOf(q.queue), letter)
	if errors.Is(err, bridge.ErrInvalidMessage) || bridge.Refusal(err) != nil {
		err = q.publish(ctx, DeadQueueOf(q.queue), wire.DeadRecord(letter))
	}
	return err
}

// complain warns that a message is retried in place, at most once a minute.
func (q *Queues) complain(queue, id string, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now := time.Now(); now.Sub(q.warned) >= time.Minute {
		q.warned = now
		q.log.Warn("message is not in its retry queue, and is retried in place", "retry_queue", queue, "message_id", id, "error", err)
	}
}
