package pending

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

// Options define how Effects retries, and where a message goes that it gives up: exactly one of
// Queues, DeadLetterExchange, DeadLetter and HandBack is required. The zero value of each other
// field means its default. New returns an error that names an invalid field.
type Options struct {
	// EffectTimeout is how long an effect of AtMostOnce may take. The time begins before the
	// effect's row is written; at its end the effect's context ends. If the database confirms the
	// row only after this time, the effect is not begun. Without a result after twice this time the
	// effect is doubtful. EffectTimeout must be below Hold, and the broker's consumer timeout above
	// the sum of both and 10 seconds, for which a delivery may be kept. If a stop ends the process
	// before an effect has ended, the effect is in doubt: let ConsumerOptions.Drain be longer than
	// EffectTimeout. Default 1 minute, or half of Hold if that is less.
	EffectTimeout time.Duration

	// FindOut asks the outside system whether a doubtful message's effect was done. Resume calls it,
	// and waits for it. After an error, and while the answer is Unknown, Resume calls it again
	// after 10 seconds, or MaxDelay if that is less. FindOut must not return DidNotHappen while the
	// effect may still come. Default nil: an operator decides.
	FindOut func(ctx context.Context, m Message) (Answer, error)

	// Poll is how often Resume looks for messages while there are none. A message that another process
	// has added may wait this long. Default 1 second.
	Poll time.Duration

	// MaxStored is the largest message, in bytes with its headers, that AtMostOnce may have to store. A
	// larger one is dead-lettered before the effect begins. Default 15 MiB, which MariaDB accepts by
	// default.
	MaxStored int

	// These fields are explained in idempotency.Options. Resume counts attempts in the database, and
	// makes a message Failed after the last one. There are no TxOptions, because an effect runs in no
	// transaction.
	Key                func(d amqp.Delivery) (string, error)                          // default: the message ID
	Retention          time.Duration                                                  // of keys; default 30 days
	Attempts           int                                                            // failures before a message is given up; default 13
	MinDelay           time.Duration                                                  // pause after the first failure; doubles with each further one; default 100 ms
	MaxDelay           time.Duration                                                  // the longest pause; default 1 minute
	Hold               time.Duration                                                  // how long a delivery is held before an effect begins; default 6 minutes
	Queues             *idempotency.Queues                                            // of idempotency.DeclareReceiver
	DeadLetterExchange bool                                                           // the queue has one: reject messages
	DeadLetter         func(ctx context.Context, d amqp.Delivery, reason error) error // stores a message elsewhere
	HandBack           bool                                                           // hand a failed message back for ever
	Logger             *slog.Logger                                                   // default slog.Default()
}

// WorkerOptions define how a Worker retries, and where a message goes that it cannot store: exactly
// one of Queues, DeadLetterExchange, DeadLetter and HandBack is required. The zero value of each
// other field means its default. NewWorker returns an error that names an invalid field.
type WorkerOptions struct {
	// Lease is how long Work may take for one attempt. Then its handler's context ends, and after
	// another quarter of Lease another worker may take the message. At least a second. Default 1
	// minute.
	Lease time.Duration

	// Drain is how long an attempt of Work may go on after its context has ended. Default 5 seconds;
	// negative: not at all.
	Drain time.Duration

	// Poll is how often Work looks for messages while there are none. A message that another process
	// has added may wait this long. Default 1 second.
	Poll time.Duration

	// MaxStored is the largest message, in bytes with its headers, that Accept stores. A larger one is
	// dead-lettered. Default 15 MiB, which MariaDB accepts by default.
	MaxStored int

	// These fields are explained in idempotency.Options. Work counts attempts in the database, and makes
	// a message Failed after the last one.
	Key                func(d amqp.Delivery) (string, error)                          // default: the message ID
	Retention          time.Duration                                                  // of keys; default 30 days
	TxOptions          *sql.TxOptions                                                 // of the transactions in which Work runs its handler; default nil: the database's default
	Attempts           int                                                            // failures before a message is given up; default 13
	MinDelay           time.Duration                                                  // pause after the first failure; doubles with each further one; default 100 ms
	MaxDelay           time.Duration                                                  // the longest pause; default 1 minute
	Hold               time.Duration                                                  // how long a delivery is held to store it; default 6 minutes
	Queues             *idempotency.Queues                                            // of idempotency.DeclareReceiver
	DeadLetterExchange bool                                                           // the queue has one: reject messages
	DeadLetter         func(ctx context.Context, d amqp.Delivery, reason error) error // stores a message elsewhere
	HandBack           bool                                                           // hand a failed message back for ever
	Logger             *slog.Logger                                                   // default slog.Default()
}

// open returns the options with their defaults, and the messages of Effects.
func (o *Options) open(inbox driver.PendingMessages, consumer string) (Options, *messages, error) {
	var filled Options
	if o != nil {
		filled = *o
	}
	m, err := newMessages(inbox, consumer, "Options", engine.Options{
		Key: filled.Key, Retention: filled.Retention, Attempts: filled.Attempts, MinDelay: filled.MinDelay, MaxDelay: filled.MaxDelay,
		Hold: filled.Hold, Queues: filled.Queues, DeadLetterExchange: filled.DeadLetterExchange,
		DeadLetter: filled.DeadLetter, HandBack: filled.HandBack, Logger: filled.Logger,
	}, filled.Poll, filled.MaxStored)
	if err != nil {
		return filled, nil, err
	}
	hold := m.keys.Opts.Hold
	if filled.EffectTimeout == 0 {
		filled.EffectTimeout = min(time.Minute, hold/2)
	}
	if filled.EffectTimeout < 0 || filled.EffectTimeout >= hold {
		return filled, nil, fmt.Errorf("Options.EffectTimeout is %v, must be positive and below Hold %v", filled.EffectTimeout, hold)
	}
	m.hold = 2 * filled.EffectTimeout
	return filled, m, nil
}

// open returns the options with their defaults, and the messages of a Worker.
func (o *WorkerOptions) open(inbox driver.PendingMessages, consumer string) (WorkerOptions, *messages, error) {
	var filled WorkerOptions
	if o != nil {
		filled = *o
	}
	m, err := newMessages(inbox, consumer, "WorkerOptions", engine.Options{
		Key: filled.Key, Retention: filled.Retention, TxOptions: filled.TxOptions, Attempts: filled.Attempts, MinDelay: filled.MinDelay, MaxDelay: filled.MaxDelay,
		Hold: filled.Hold, Drain: filled.Drain, Queues: filled.Queues, DeadLetterExchange: filled.DeadLetterExchange,
		DeadLetter: filled.DeadLetter, HandBack: filled.HandBack, Logger: filled.Logger,
	}, filled.Poll, filled.MaxStored)
	if err != nil {
		return filled, nil, err
	}
	if filled.Lease == 0 {
		filled.Lease = time.Minute
	}
	if filled.Lease < time.Second {
		return filled, nil, fmt.Errorf("WorkerOptions.Lease is %v, must be at least 1s", filled.Lease)
	}
	m.hold = filled.Lease + filled.Lease/4
	return filled, m, nil
}
