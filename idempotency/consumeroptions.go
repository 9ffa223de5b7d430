package idempotency

import (
	"fmt"
	"log/slog"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ConsumerOptions are the options of NewConsumer. Nil and the zero value of each field mean their
// defaults.
type ConsumerOptions struct {
	// Workers is how many handlers run at once, over all sessions. Without Options.Queues, a message
	// that fails keeps its worker for all its attempts (see Options.Attempts). Give the database as
	// many idle connections: a sql.DB keeps two unless SetMaxIdleConns changes that, and opens the
	// others again each time. Default 10.
	Workers int

	// Key returns a message's key: an order's number, an account. Messages with the same key are
	// handled one after the other, in the order of the queue. Messages with different keys are handled
	// in parallel, and so are messages with the key "", except copies of one message. A message that
	// fails delays its key until it is dead-lettered. If Key panics, the message has the key "".
	// Default: none.
	Key func(d amqp.Delivery) string

	// Prefetch is how many messages the broker delivers before they are acked. Messages without a
	// free worker wait here, while the broker's consumer timeout runs (30 minutes unless changed).
	// With a Key, many failing messages of one key may together reach the timeout; then the session
	// ends, and they come again. The least is Workers, in a batch consumer Workers times the size of
	// a batch. Default: four times the least (at most 65,535), so that workers wait neither for the
	// broker nor for one busy key; Options.Hold's default is short enough for it.
	Prefetch int

	// MaxBytes bounds the memory of the held messages, in bytes. Messages without room go back to
	// the queue when half of MaxBytes is free. A larger message is held alone. The messages of a
	// handler that has run for a minute no longer count, so that a handler that hangs keeps no other
	// message out: the messages of up to Workers handlers may be held in addition. But messages that
	// wait for the Key of such a handler do count. If they need more than half of MaxBytes, other
	// messages may have to wait until the broker's consumer timeout ends the session. Default 64
	// MiB.
	MaxBytes int

	// Drain is how long handlers may go on after Run's context or their session has ended. Then their
	// context ends too. Run waits up to 5 seconds more for them to return. The process needs at least
	// this time to stop: Kubernetes gives 30 s, Docker 10 s, unless configured otherwise. Default 20
	// seconds.
	Drain time.Duration

	// Logger gets a line for the begin and the end of each session, and for each error of a
	// handler. Default slog.Default().
	Logger *slog.Logger
}

// maxPrefetch is the largest value of AMQP's 16 bits; 0 would be unlimited.
const maxPrefetch = 1<<16 - 1

func (o *ConsumerOptions) withDefaults(batch int) (ConsumerOptions, error) {
	var filled ConsumerOptions
	if o != nil {
		filled = *o
	}
	if filled.Workers == 0 {
		filled.Workers = 10
	}
	if filled.Prefetch == 0 {
		filled.Prefetch = min(4*filled.Workers*batch, maxPrefetch)
	}
	if filled.MaxBytes == 0 {
		filled.MaxBytes = 64 << 20
	}
	if filled.Drain == 0 {
		filled.Drain = 20 * time.Second
	}
	if filled.Logger == nil {
		filled.Logger = slog.Default()
	}
	switch {
	case filled.Workers < 0:
		return filled, fmt.Errorf("ConsumerOptions.Workers is %d, must not be negative", filled.Workers)
	case filled.Prefetch < filled.Workers*batch || filled.Prefetch > maxPrefetch:
		return filled, fmt.Errorf("ConsumerOptions.Prefetch is %d, must be from Workers %d times batch %d to %d", filled.Prefetch, filled.Workers, batch, maxPrefetch)
	case filled.MaxBytes < 0:
		return filled, fmt.Errorf("ConsumerOptions.MaxBytes is %d, must not be negative", filled.MaxBytes)
	case filled.Drain < 0:
		return filled, fmt.Errorf("ConsumerOptions.Drain is %v, must not be negative", filled.Drain)
	}
	return filled, nil
}

// ordered reports whether a message that goes back must not be overtaken.
func (o *ConsumerOptions) ordered() bool { return o.Workers == 1 || o.Key != nil }
