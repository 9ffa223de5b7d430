package versions

import (
	"context"
	"log/slog"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// Options define how a strategy retries, and where a message goes that it gives up: exactly one of
// Queues, DeadLetterExchange, DeadLetter and HandBack is required. The zero value of each other
// field means its default. The fields are explained in idempotency.Options.
type Options struct {
	Attempts int           // failures before a message is dead-lettered; default 13
	MinDelay time.Duration // pause after the first failure; doubles with each further one; default 100 ms
	MaxDelay time.Duration // the longest pause; default 1 minute
	Hold     time.Duration // how long a delivery is held at most; default 6 minutes
	Drain    time.Duration // how long an attempt may go on after its context has ended; default 5 seconds

	// Queues are the queues that idempotency.DeclareReceiver has declared. Latest uses their retry
	// queues. With Ordered and HighWater later messages would overtake, so they retry in place, and
	// use the dead queue only.
	Queues *idempotency.Queues

	DeadLetterExchange bool                                                           // the queue has one: reject messages
	DeadLetter         func(ctx context.Context, d amqp.Delivery, reason error) error // stores a message elsewhere
	HandBack           bool                                                           // hand a failed message back for ever
	Logger             *slog.Logger                                                   // default slog.Default()
}

// newEngine returns the Engine of a strategy.
func newEngine(marks driver.Marks, consumer string, opts *Options) (*engine.Engine, error) {
	if opts == nil {
		opts = new(Options)
	}
	return engine.New(marks, consumer, "Options", engine.Options{
		Attempts: opts.Attempts, MinDelay: opts.MinDelay, MaxDelay: opts.MaxDelay, Hold: opts.Hold, Drain: opts.Drain,
		Queues: opts.Queues, DeadLetterExchange: opts.DeadLetterExchange, DeadLetter: opts.DeadLetter, HandBack: opts.HandBack,
		Logger: opts.Logger,
	})
}
