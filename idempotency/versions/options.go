package versions

import (
	"context"
	"database/sql"
	"fmt"
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
	TxOptions *sql.TxOptions // of the handler's transactions; default nil: the database's default
	Attempts  int            // failures before a message is dead-lettered; default 13
	MinDelay  time.Duration  // pause after the first failure; doubles with each further one; default 100 ms
	MaxDelay  time.Duration  // the longest pause; default 1 minute
	Hold      time.Duration  // how long a delivery is held at most; default 6 minutes
	Drain     time.Duration  // how long an attempt may go on after its context has ended; default 5 seconds

	// Queues are the queues that idempotency.DeclareReceiver has declared. Latest uses their retry
	// queues. With Ordered and HighWater later messages would overtake, so they retry in place, and
	// use the dead queue only.
	Queues *idempotency.Queues

	DeadLetterExchange bool                                                           // the queue has one: reject messages
	DeadLetter         func(ctx context.Context, d amqp.Delivery, reason error) error // stores a message elsewhere
	HandBack           bool                                                           // hand a failed message back for ever
	Logger             *slog.Logger                                                   // default slog.Default()
}

// OrderedOptions are the options of NewOrdered. The zero value of each field means its default.
type OrderedOptions struct {
	Options

	// Start is the version of an entity's first event. Nil means 1.
	Start *int64

	// MaxKept is how many events of one entity are kept at most. Further events that come early
	// are dead-lettered, so that they stop no other entity. Default 1,000.
	MaxKept int

	// MaxKeptBytes is how large a kept event may be, as stored, headers included. A larger one
	// that comes early is dead-lettered. Default 256 KiB.
	MaxKeptBytes int

	// GapAge is how long an event may be kept before Watch reports that its entity waits. It is also
	// the interval of Watch. Default 1 minute.
	GapAge time.Duration
}

func (o *OrderedOptions) withDefaults() (OrderedOptions, error) {
	var filled OrderedOptions
	if o != nil {
		filled = *o
	}
	if filled.Start == nil {
		filled.Start = new(int64(1))
	}
	if filled.MaxKept == 0 {
		filled.MaxKept = 1000
	}
	if filled.MaxKeptBytes == 0 {
		filled.MaxKeptBytes = 256 << 10
	}
	if filled.GapAge == 0 {
		filled.GapAge = time.Minute
	}
	switch {
	case *filled.Start < 0:
		return filled, fmt.Errorf("OrderedOptions.Start is %d, must not be negative", *filled.Start)
	case filled.MaxKept < 0:
		return filled, fmt.Errorf("OrderedOptions.MaxKept is %d, must not be negative", filled.MaxKept)
	case filled.MaxKeptBytes < 0:
		return filled, fmt.Errorf("OrderedOptions.MaxKeptBytes is %d, must not be negative", filled.MaxKeptBytes)
	case filled.GapAge < 0:
		return filled, fmt.Errorf("OrderedOptions.GapAge is %v, must not be negative", filled.GapAge)
	}
	return filled, nil
}

// newEngine returns the Engine of a strategy.
func newEngine(marks driver.Marks, consumer string, opts *Options) (*engine.Engine, error) {
	if opts == nil {
		opts = new(Options)
	}
	return engine.New(marks, consumer, "Options", engine.Options{
		TxOptions: opts.TxOptions, Attempts: opts.Attempts, MinDelay: opts.MinDelay, MaxDelay: opts.MaxDelay, Hold: opts.Hold, Drain: opts.Drain,
		Queues: opts.Queues, DeadLetterExchange: opts.DeadLetterExchange, DeadLetter: opts.DeadLetter, HandBack: opts.HandBack,
		Logger: opts.Logger,
	})
}
