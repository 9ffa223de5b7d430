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

// A RetryQueue is a queue in which messages wait for a fixed time.
type RetryQueue struct {
	Name  string
	Delay time.Duration
}

// A Publisher is a *bridge.Broker.
type Publisher interface {
	Publish(ctx context.Context, messages []bridge.Outgoing) error
}

// Queues are idempotency.Queues.
type Queues struct {
	broker     Publisher
	retries    []RetryQueue
	deadLetter func(ctx context.Context, d amqp.Delivery, reason error) error
	log        *slog.Logger

	mu     sync.Mutex
	warned time.Time
}

// NewQueues returns the queues of a receiver, which must exist.
func NewQueues(broker Publisher, queue string, retries []RetryQueue, logger *slog.Logger) *Queues {
	return &Queues{broker: broker, retries: retries, deadLetter: DeadQueue(broker, DeadQueueOf(queue), queue), log: logger.With("queue", queue)}
}

// DeadQueueOf returns the name of a receiver's dead queue.
func DeadQueueOf(queue string) string { return queue + ".dead" }

// publishLimit bounds the wait for a confirm. The delivery is held meanwhile.
const publishLimit = 30 * time.Second

// publish returns nil when the broker has confirmed the message in that queue.
func publish(ctx context.Context, broker Publisher, queue string, message amqp.Publishing) error {
	ctx, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	return broker.Publish(ctx, []bridge.Outgoing{{Target: bridge.Target{RoutingKey: queue}, Publishing: message}})
}

// The reasons in a dead queue.
const (
	deadFailed = "failed"  // the handler failed too often, or the message cannot be handled
	deadTooOld = "too-old" // ErrTooOld
)

// DeadQueue is idempotency.DeadQueue.
func DeadQueue(broker Publisher, dead, queue string) func(ctx context.Context, d amqp.Delivery, reason error) error {
	return func(ctx context.Context, d amqp.Delivery, reason error) error {
		const textLimit = 1000
		code, text := deadFailed, strings.ToValidUTF8(reason.Error(), "\uFFFD")
		if errors.Is(reason, ErrTooOld) {
			code = deadTooOld
		}
		attempts, _ := Attempt(ctx)
		letter := wire.ReceiverLetter(d, queue, amqp.Table{
			wire.HeaderDeadReason:   code,
			wire.HeaderDeadText:     strings.ToValidUTF8(text[:min(len(text), textLimit)], ""),
			wire.HeaderDeadAttempts: int64(attempts),
			wire.HeaderDeadAt:       time.Now().UTC().Format(time.RFC3339),
		})
		err := publish(ctx, broker, dead, letter)
		if errors.Is(err, bridge.ErrInvalidMessage) || bridge.Refusal(err) != nil {
			err = publish(ctx, broker, dead, wire.DeadRecord(letter))
		}
		return err
	}
}

// complain warns that a message is retried in place, at most once a minute.
func (q *Queues) complain(queue, id string, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now := time.Now(); now.Sub(q.warned) >= time.Minute {
		q.warned = now
		q.log.Warn("message could not be moved to its retry queue; retrying in place", "retry_queue", queue, "message_id", id, "error", err)
	}
}
