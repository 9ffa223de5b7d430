package engine

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Options are idempotency.Options, which has the comments. Both have the same fields, so that one
// can be converted to the other.
type Options struct {
	Key                func(d amqp.Delivery) (string, error)
	Retention          time.Duration
	TxOptions          *sql.TxOptions
	Attempts           int
	MinDelay           time.Duration
	MaxDelay           time.Duration
	Hold               time.Duration
	Drain              time.Duration
	Queues             *Queues
	DeadLetterExchange bool
	DeadLetter         func(ctx context.Context, d amqp.Delivery, reason error) error
	HandBack           bool
	Logger             *slog.Logger
}

// fill fills in every default.
func (o *Options) fill() {
	if o.Attempts == 0 {
		o.Attempts = 13
	}
	if o.MinDelay == 0 {
		o.MinDelay = 100 * time.Millisecond
	}
	if o.MaxDelay == 0 {
		o.MaxDelay = time.Minute
	}
	if o.Hold == 0 {
		o.Hold = 6 * time.Minute
	}
	if o.Drain == 0 {
		o.Drain = 5 * time.Second
	}
	if o.Retention == 0 {
		o.Retention = 30 * 24 * time.Hour
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// validate returns an error that names the wrong option; name is the name of the options.
func (o *Options) validate(name string) error {
	switch {
	case o.Attempts < 0:
		return fmt.Errorf("%s.Attempts is %d, must not be negative", name, o.Attempts)
	case o.MinDelay < 0:
		return fmt.Errorf("%s.MinDelay is %v, must not be negative", name, o.MinDelay)
	case o.MaxDelay < o.MinDelay:
		return fmt.Errorf("%s.MaxDelay is %v, below MinDelay %v", name, o.MaxDelay, o.MinDelay)
	case o.Hold < 0:
		return fmt.Errorf("%s.Hold is %v, must not be negative", name, o.Hold)
	case o.TxOptions != nil && o.TxOptions.ReadOnly:
		return fmt.Errorf("%s.TxOptions is read-only, but each transaction writes", name)
	case o.Retention > 0 && o.Retention < time.Hour:
		return fmt.Errorf("%s.Retention is %v, must be at least 1h, or negative to keep keys for ever", name, o.Retention)
	}
	chosen := 0
	for _, set := range []bool{o.Queues != nil, o.DeadLetterExchange, o.DeadLetter != nil, o.HandBack} {
		if set {
			chosen++
		}
	}
	switch chosen {
	case 0:
		return fmt.Errorf("no place for messages that cannot be handled: set %s.Queues, DeadLetterExchange, DeadLetter, or HandBack to requeue them for ever", name)
	case 1:
		return nil
	default:
		return fmt.Errorf("%s.Queues, DeadLetterExchange, DeadLetter and HandBack exclude each other", name)
	}
}

// delays returns the pauses between attempts.
func (o *Options) delays() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval:     o.MinDelay,
		MaxInterval:         o.MaxDelay,
		Multiplier:          2,
		RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
}

// ShortDelay bounds the pauses after a failure that no message has caused. Such a failure ends for
// all messages at once.
func (o *Options) ShortDelay() time.Duration { return min(o.MaxDelay, 10*time.Second) }

// ShortDelays returns the pauses after such failures.
func (o *Options) ShortDelays() *backoff.ExponentialBackOff {
	delays := o.delays()
	delays.MaxInterval = o.ShortDelay()
	return delays
}

// Delay returns the pause after a number of failed attempts.
func (o *Options) Delay(attempts int) (delay time.Duration) {
	delays := o.delays()
	const enough = 64 // doublings reach every MaxDelay
	for range min(attempts, enough) {
		delay = delays.NextBackOff()
	}
	return delay
}
