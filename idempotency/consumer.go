package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// A Consumer takes messages from a queue and passes each to a handler, several at once. The package
// comment shows one.
//
// The handler calls a strategy: Deduplicator.Handle or HandleWithClaim, AtMostOnce or Accept of
// package pending, or a Handle of package versions. The strategy acks, retries and dead-letters; the
// Consumer logs the error that the handler returns. A handler without a strategy acks or rejects d
// itself. If the handler returns, panics or ends its goroutine, and d is neither acked nor rejected,
// the Consumer hands d back after a second.
//
// # Sessions
//
// The Consumer has a separate connection with one channel. If either is lost, or the broker ends
// the consumer (its queue was deleted, a message was held for too long), the Consumer closes both
// and connects again, with growing pauses. Messages that were delivered and not acked come again.
// Handlers that run then may finish; their acks fail (ErrNotAcked).
//
// A message that comes again while its handler still runs in this process waits for that handler.
// So a handler that never returns keeps one worker, however often the broker delivers its message.
//
// # Order
//
// Messages are handled in parallel and in no order, unless ConsumerOptions.Key is set or Workers is
// 1. Then the order of the queue is kept, per key or for all messages, if the queue has
// x-single-active-consumer (ReceiverOptions.SingleActiveConsumer). A requeued message could be
// overtaken. So if a message must go back, the Consumer closes the channel instead, which returns
// all unacked messages in their order. For the same reason messages are retried in place, and not in
// retry queues (Options.Queues). A versions.HighWater needs Workers 1. With one worker Key changes no
// order.
//
// Before RabbitMQ 4.2.6 the broker itself may deliver a new session's first messages out of order
// (rabbitmq-server, pull requests 14386 and 16008). A test that ends dozens of sessions a minute saw
// 10 of 40 messages of each key in another order once, on a busy machine with RabbitMQ 4.0.5.
//
// # Acks
//
// While the Consumer has more than Workers deliveries that no handler has acked, acks wait for
// others for up to 5 ms, or until they are a quarter of the prefetch. The broker then gets one ack
// for many messages. If the process dies or the connection is lost, messages whose acks were
// waiting come again, and are duplicates, as after any lost ack. No call returns ErrNotAcked for
// them, and Stats.NotAcked does not count them.
//
// # Shutdown
//
// When Run's context ends, no further handler starts, and a strategy begins no further attempt.
// Running attempts have ConsumerOptions.Drain to finish (Options.Drain does not count in a
// Consumer); then the context of the handlers ends. The end of the connection returns all other
// messages to the queue. No message is requeued before that.
type Consumer struct {
	broker  *bridge.Broker
	queue   string
	opts    ConsumerOptions
	log     *slog.Logger
	workers *workers
	runs    atomic.Bool

	mu    sync.Mutex
	state ConsumerState
}

// NewConsumer returns a Consumer of a queue, which must exist when Run begins to consume. The
// Consumer opens a separate connection through broker. NewConsumer itself does not connect; its
// error names the wrong argument or option.
//
// handle is called for each delivery, by up to ConsumerOptions.Workers goroutines at once. Its
// context ends ConsumerOptions.Drain after Run's context or the delivery's session has ended. d
// must not be used after handle has returned.
func NewConsumer(broker *bridge.Broker, queue string, handle func(ctx context.Context, d amqp.Delivery) error, opts *ConsumerOptions) (*Consumer, error) {
	if handle == nil {
		return nil, errors.New("new consumer: handle is nil")
	}
	return newConsumer(broker, queue, 1, func(ctx context.Context, ds []amqp.Delivery) error { return handle(ctx, ds[0]) }, opts)
}

// NewBatchConsumer is NewConsumer with a handler of up to batch deliveries at once, such as a call of
// [Deduplicator.HandleBatch]. A free worker takes the waiting messages, up to batch, and never waits
// for more: so batches are of one message while the queue is empty, and grow while all workers are
// busy. With fewer Workers they grow earlier; 2 is usually enough. With more than one worker, messages
// with the same key (see ConsumerOptions.Key) and copies of one message are in different batches. A
// batch keeps its worker until the handler returns, and the key of each message until the message is
// acked or rejected.
//
// The Consumer tracks which of its deliveries are unacked. HandleBatch acks a whole batch with one
// multiple ack if no earlier delivery is open; otherwise it acks the messages behind that delivery one
// by one.
func NewBatchConsumer(broker *bridge.Broker, queue string, batch int, handle func(ctx context.Context, ds []amqp.Delivery) error, opts *ConsumerOptions) (*Consumer, error) {
	switch {
	case handle == nil:
		return nil, errors.New("new consumer: handle is nil")
	case batch < 1:
		return nil, fmt.Errorf("new consumer: batch is %d, must be at least 1", batch)
	}
	return newConsumer(broker, queue, batch, handle, opts)
}

func newConsumer(broker *bridge.Broker, queue string, batch int, handle func(ctx context.Context, ds []amqp.Delivery) error, opts *ConsumerOptions) (*Consumer, error) {
	filled, err := opts.withDefaults(batch)
	switch {
	case broker == nil:
		return nil, errors.New("new consumer: broker is nil")
	case queue == "":
		return nil, errors.New("new consumer: queue is empty")
	case err != nil:
		return nil, fmt.Errorf("new consumer: %w", err)
	}
	log := filled.Logger.With("queue", queue)
	return &Consumer{broker: broker, queue: queue, opts: filled, log: log, workers: newWorkers(&filled, batch, handle, log)}, nil
}

// ErrNotDrained: handlers still ran when the Consumer's time to drain was over. Their messages
// are redelivered.
var ErrNotDrained = errors.New("not drained in time")

const (
	// endPatience is how long Run waits for handlers whose context has ended.
	endPatience = 5 * time.Second

	// longestRedial bounds the pauses between sessions.
	longestRedial = 10 * time.Second
)

// Run consumes until ctx ends, and drains. Then it returns nil, or an error that wraps
// ErrNotDrained if handlers still run. Otherwise it returns only if the broker refuses the login
// and has not accepted it before; the error is bridge.ErrCredentials. Run logs any other failure
// and tries again: the broker may come back, and a missing queue may be declared. A Consumer runs
// once at a time.
func (c *Consumer) Run(ctx context.Context) error {
	if !c.runs.CompareAndSwap(false, true) {
		return fmt.Errorf("consume %q: the consumer runs already", c.queue)
	}
	defer c.runs.Store(false)
	patience, cancel := engine.Outliving(ctx, c.opts.Drain+endPatience)
	defer cancel()
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = 100*time.Millisecond, longestRedial
	for admitted := false; ; {
		reached, err := c.session(ctx, patience)
		c.disconnected(err)
		if ctx.Err() != nil {
			return c.drain(patience, nil) // handlers of earlier sessions too
		}
		if admitted = admitted || reached >= loggedIn; !admitted && errors.Is(err, bridge.ErrCredentials) {
			return fmt.Errorf("consume %q: %w", c.queue, err)
		}
		if reached == consuming {
			pauses.Reset()
		}
		delay := pauses.NextBackOff()
		c.log.Warn("consumer session ended", "error", err, "retry_in", delay)
		engine.Pause(ctx, delay)
	}
}

// session consumes over one connection until the connection or ctx ends. If ctx ends, it drains.
func (c *Consumer) session(ctx, patience context.Context) (reached int, err error) {
	s, reached, err := openSession(ctx, c.broker, c.queue, &c.opts)
	if err != nil {
		return reached, err
	}
	c.connected()
	c.log.Info("consumer session started")
	err = s.receive(func(d amqp.Delivery) { c.workers.take(s, d) })
	_ = s.open.flush() // later acks do not wait for others; if it fails, the end of the channel returns the messages
	c.workers.jobs.prune()
	awaitAcks := errors.Is(err, errCancelled) // only the consumer has ended: the channel is still open
	if err == nil {
		err, awaitAcks = context.Cause(s.Stopping), true
		if ctx.Err() != nil {
			err = c.drain(patience, s)
			awaitAcks = err == nil
		}
	}
	s.close(awaitAcks)
	return reached, err
}

// drain waits until no handler runs, and returns ErrNotDrained if patience ends before. Meanwhile
// it receives the deliveries of a session, if there is one; they stay unacked.
func (c *Consumer) drain(patience context.Context, s *consumerSession) error {
	var deliveries <-chan amqp.Delivery
	if s != nil {
		deliveries = s.deliveries
	}
	for {
		running, _ := c.workers.jobs.state()
		if running == 0 {
			return nil
		}
		select {
		case <-c.workers.jobs.freed:
		case d, open := <-deliveries:
			if !open {
				deliveries = nil // the handlers may still finish
				continue
			}
			s.conn.Received(d)
		case <-patience.Done():
			return fmt.Errorf("consume %q: %w: %d handlers still run", c.queue, ErrNotDrained, running)
		}
	}
}

// A ConsumerState is the state of a Consumer at one moment.
type ConsumerState struct {
	Consuming bool      // the broker delivers to it
	Since     time.Time // when Consuming last changed; zero before the first session
	Err       error     // why it is not consuming: the error that ended the last session or kept it from beginning

	Running int       // running handlers
	Oldest  time.Time // when the longest-running of these began; zero if there is none
}

// State returns the present state: for readiness, and to find a handler that hangs.
func (c *Consumer) State() ConsumerState {
	c.mu.Lock()
	state := c.state
	c.mu.Unlock()
	state.Running, state.Oldest = c.workers.jobs.state()
	return state
}

func (c *Consumer) connected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = ConsumerState{Consuming: true, Since: time.Now()}
}

func (c *Consumer) disconnected(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Consuming {
		c.state.Since = time.Now()
	}
	c.state.Consuming, c.state.Err = false, err
}
