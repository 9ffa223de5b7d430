package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Options change how a Guard retries and gives up. The zero value of each field
// means its default.
type Options struct {
	// Attempts is how often the handler may fail within one delivery before the
	// message is dead-lettered. Default 5; 1 means no retry. A handler that knows
	// that no retry can help returns backoff.Permanent(err), of
	// github.com/cenkalti/backoff/v5.
	Attempts int

	// MinDelay is the pause after the first failed attempt. It doubles with each
	// further one up to MaxDelay, and is varied at random by up to a half.
	// MaxDelay is also the pause before a message that can be neither handled nor
	// dead-lettered is handed back. Defaults 100 ms and 10 s.
	MinDelay time.Duration
	MaxDelay time.Duration

	// Hold is how long a delivery may be kept, over all its attempts and pauses;
	// then the handler's context ends and the message is handed back. It must
	// exceed the handler's longest run, and stay below the broker's consumer
	// timeout (30 minutes unless changed), after which the broker closes the
	// channel with everything on it. Default 5 minutes.
	Hold time.Duration

	// DeadLetterExchange declares that the queue has a dead-letter exchange and
	// that something is bound to it. Failed messages are then rejected, and the
	// broker moves them there. On a queue without one they would be lost. The
	// reason is in the log only. Excludes DeadLetter.
	DeadLetterExchange bool

	// DeadLetter stores a failed message with the reason: in a table, or by a
	// confirmed publish. After nil the Guard acks the message; after an error or a
	// panic it hands it back. The function must not ack or reject d itself. A crash
	// or a lost ack after it has stored the message brings the message again, so it
	// may be stored twice, or be handled after all. Excludes DeadLetterExchange.
	DeadLetter func(ctx context.Context, d amqp.Delivery, reason error) error

	// Logger gets a warning for each failed attempt that is tried again, and an
	// error for each panic (with its stack) and each dead-lettered message. What
	// Handle returns as an error is not logged as well. Default slog.Default().
	Logger *slog.Logger
}

// withDefaults returns a copy of o, which may be nil, with every default filled in.
func (o *Options) withDefaults() Options {
	var filled Options
	if o != nil {
		filled = *o
	}
	if filled.Attempts == 0 {
		filled.Attempts = 5
	}
	if filled.MinDelay == 0 {
		filled.MinDelay = 100 * time.Millisecond
	}
	if filled.MaxDelay == 0 {
		filled.MaxDelay = 10 * time.Second
	}
	if filled.Hold == 0 {
		filled.Hold = 5 * time.Minute
	}
	if filled.Logger == nil {
		filled.Logger = slog.Default()
	}
	return filled
}

func (o *Options) validate() error {
	switch {
	case o.Attempts < 0:
		return fmt.Errorf("Options.Attempts is %d, must not be negative", o.Attempts)
	case o.MinDelay < 0:
		return fmt.Errorf("Options.MinDelay is %v, must not be negative", o.MinDelay)
	case o.MaxDelay < o.MinDelay:
		return fmt.Errorf("Options.MaxDelay is %v, below MinDelay %v", o.MaxDelay, o.MinDelay)
	case o.Hold < 0:
		return fmt.Errorf("Options.Hold is %v, must not be negative", o.Hold)
	case o.DeadLetterExchange && o.DeadLetter != nil:
		return errors.New("Options.DeadLetterExchange and Options.DeadLetter exclude each other")
	}
	return nil
}

// delays returns the pauses of one delivery.
func (o *Options) delays() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval:     o.MinDelay,
		MaxInterval:         o.MaxDelay,
		Multiplier:          2,
		RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
}
