package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// ReceiverOptions are the options of DeclareReceiver. Nil and the zero value of each field mean
// their defaults.
type ReceiverOptions struct {
	// RetryDelays are the delays of the retry queues, growing, in whole milliseconds: after its k-th
	// failure a message waits for the k-th delay, after further failures for the last one. Default 1
	// s, 5 s, 30 s and 2 minutes: with the default Options.Attempts a message is dead-lettered after
	// more than 18 minutes. An empty list that is not nil: no retry queues.
	RetryDelays []time.Duration

	// SingleActiveConsumer gives the queue x-single-active-consumer, so that one consumer at a time
	// gets messages, in their order. Then there are no retry queues, in which a message would be
	// overtaken: failed messages are retried in place.
	SingleActiveConsumer bool

	// DeliveryLimit is how often the queue may take a message back from a consumer that did not ack
	// it. Beyond that, the broker moves the message to the dead queue. This stops a message that
	// ends the process each time. The other messages that are unacked at that moment count too: see
	// 'Requirements of the queue' in the package comment. At most 1,000,000. Default 100.
	DeliveryLimit int

	// Logger gets a warning if messages must be retried in place because no retry queue takes
	// them, at most once a minute. Default slog.Default().
	Logger *slog.Logger
}

var defaultRetryDelays = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute}

func (o *ReceiverOptions) withDefaults() ReceiverOptions {
	var filled ReceiverOptions
	if o != nil {
		filled = *o
	}
	switch {
	case filled.SingleActiveConsumer:
		filled.RetryDelays = nil
	case filled.RetryDelays == nil:
		filled.RetryDelays = defaultRetryDelays
	}
	if filled.DeliveryLimit == 0 {
		filled.DeliveryLimit = defaultDeliveryLimit
	}
	if filled.Logger == nil {
		filled.Logger = slog.Default()
	}
	return filled
}

const (
	maxRetryDelays = 16
	longestRetry   = 24 * time.Hour

	// Each stop, crash or lost connection of a receiver brings its unacked messages one closer to the
	// limit, and before RabbitMQ 4.3 so does each hand-back: one per Options.Hold while the database
	// is unavailable. A hundred last for more than eight hours of that.
	defaultDeliveryLimit = 100
	maxDeliveryLimit     = 1_000_000
)

func (o *ReceiverOptions) validate() error {
	if len(o.RetryDelays) > maxRetryDelays {
		return fmt.Errorf("ReceiverOptions.RetryDelays has %d delays, more than %d", len(o.RetryDelays), maxRetryDelays)
	}
	if o.DeliveryLimit < 1 || o.DeliveryLimit > maxDeliveryLimit {
		return fmt.Errorf("ReceiverOptions.DeliveryLimit is %d, must be between 1 and %d", o.DeliveryLimit, maxDeliveryLimit)
	}
	before := time.Duration(0)
	for _, delay := range o.RetryDelays {
		if delay <= before || delay > longestRetry || delay%time.Millisecond != 0 {
			return fmt.Errorf("ReceiverOptions.RetryDelays are %v, must grow, in whole milliseconds, to at most %v", o.RetryDelays, longestRetry)
		}
		before = delay
	}
	return nil
}

// Queues are a receiver's queue, its retry queues and its dead queue, for Options.Queues. Any
// number of goroutines may use them.
type Queues = engine.Queues

// DeclareReceiver declares the queue of a receiver, and with it
//
//	QUEUE.retry.1s …  a message whose attempt failed waits here, and comes back to QUEUE
//	QUEUE.dead        for messages that are given up
//
// All are quorum queues, with the arguments that ReceiverQueues lists: the broker moves messages
// between them at least once. Existing queues are checked. If one has other arguments, the error is
// a *bridge.QueueMismatch, which names the queue and the argument. A login without the right to
// configure them uses them unchecked, with a warning in the broker's log. Policies are not checked;
// bridgectl doctor --receiver QUEUE shows their effect.
//
// The login needs the rights to configure the queues, to write to the default exchange, and to read
// QUEUE and the retry queues: bridgectl grants receiver --declares prints them. Publishing uses
// broker, which must stay open. Without a connection the error is bridge.ErrUnavailable.
func DeclareReceiver(ctx context.Context, broker *bridge.Broker, queue string, opts *ReceiverOptions) (*Queues, error) {
	filled := opts.withDefaults()
	switch err := filled.validate(); {
	case broker == nil:
		return nil, errors.New("declare receiver: broker is nil")
	case queue == "" || len(queue) > 200:
		return nil, fmt.Errorf("declare receiver: the queue's name has %d bytes, must have 1 to 200", len(queue))
	case err != nil:
		return nil, fmt.Errorf("declare receiver: %w", err)
	}
	if err := bridge.DeclareQueues(ctx, broker, ReceiverQueues(queue, &filled)); err != nil {
		return nil, fmt.Errorf("declare receiver: %w", err)
	}
	var retries []engine.RetryQueue
	for _, delay := range filled.RetryDelays {
		retries = append(retries, engine.RetryQueue{Name: retryQueue(queue, delay), Delay: delay})
	}
	return engine.NewQueues(broker, queue, retries, filled.Logger), nil
}

// ReceiverQueues returns the queues that DeclareReceiver declares, each with its arguments. The
// dead queue is the first, so that the queue never exists without it, and the queue itself the
// second.
func ReceiverQueues(queue string, opts *ReceiverOptions) []bridge.Queue {
	filled := opts.withDefaults()
	own := bridge.QuorumQueue(queue, engine.DeadQueueOf(queue))
	own.Arguments["x-delivery-limit"] = filled.DeliveryLimit
	if filled.SingleActiveConsumer {
		own.Arguments["x-single-active-consumer"] = true
	}
	queues := []bridge.Queue{bridge.QuorumQueue(engine.DeadQueueOf(queue), ""), own}
	for _, delay := range filled.RetryDelays {
		retry := bridge.QuorumQueue(retryQueue(queue, delay), queue)
		retry.Arguments["x-message-ttl"] = int(delay.Milliseconds())
		queues = append(queues, retry)
	}
	return queues
}

// DeadQueue returns a function for Options.DeadLetter, for receivers whose queues DeclareReceiver has
// not declared. It publishes a message to the queue dead of broker, with the reason and the number of
// attempts, and waits for the confirm for up to 30 seconds. So no message is lost on the way, as is
// possible when the broker moves it (see Options.DeadLetterExchange). With Options.Queues a
// Deduplicator does the same. bridgectl dead list, show and replay handle such messages: a replay
// sends one to queue, the receiver's queue, and resets its attempts. If the message's own headers
// leave no room for the reason, it is published as a record (wire.DeadRecord). The queue dead must
// exist, and broker's login must have the right to write to the default exchange.
func DeadQueue(broker *bridge.Broker, dead, queue string) func(ctx context.Context, d amqp.Delivery, reason error) error {
	return engine.DeadQueue(broker, dead, queue)
}

// retryQueue returns the name of a queue's retry queue with a delay.
func retryQueue(queue string, delay time.Duration) string {
	text := delay.String()
	for _, unit := range []string{"m0s", "h0m"} { // 2m0s is 2m
		if strings.HasSuffix(text, unit) {
			text = text[:len(text)-2]
		}
	}
	return queue + ".retry." + text
}
