package pending

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// Effects handles each message of one consumer by [Effects.AtMostOnce]. It is safe for concurrent
// use, and starts no goroutines. In memory it keeps the same data as an idempotency.Deduplicator.
type Effects struct {
	*messages
	opts Options
}

// New returns an Effects that claims keys in inbox in the name of consumer. Name and opts follow the
// rules of idempotency.New.
func New(inbox driver.PendingMessages, consumer string, opts *Options) (*Effects, error) {
	filled, m, err := opts.open(inbox, consumer)
	if err != nil {
		return nil, fmt.Errorf("new effects: %w", err)
	}
	return &Effects{m, filled}, nil
}

// A Worker stores each message of one consumer by [Worker.Accept], and handles the stored ones by
// [Worker.Work]. It is safe for concurrent use, and starts no goroutines. In memory it keeps the same
// data as an idempotency.Deduplicator. A consumer uses either Effects or a Worker; their
// operators' methods are the same.
type Worker struct {
	*messages
	lease time.Duration
}

// NewWorker returns a Worker that claims keys in inbox in the name of consumer. Name and opts follow
// the rules of idempotency.New.
func NewWorker(inbox driver.PendingMessages, consumer string, opts *WorkerOptions) (*Worker, error) {
	filled, m, err := opts.open(inbox, consumer)
	if err != nil {
		return nil, fmt.Errorf("new worker: %w", err)
	}
	return &Worker{m, filled.Lease}, nil
}

// messages are the claimed messages of one consumer that are not done.
type messages struct {
	keys      *engine.Keys
	inbox     driver.PendingMessages // of keys
	hold      time.Duration          // how long a run has its row
	every     time.Duration          // the option Poll
	maxStored int
	added     chan struct{} // signals new work to await
}

// Purge is idempotency.Deduplicator.Purge. AtMostOnce and Accept purge too.
func (m *messages) Purge(ctx context.Context, db *sql.DB) (forgotten int64, err error) {
	return m.keys.Purge(ctx, db)
}

// Stats returns the counts so far. Messages that Work and Resume end count once more, as Handled,
// Kept or Doubtful.
func (m *messages) Stats() idempotency.Stats { return idempotency.Stats(m.keys.Stats()) }

// storable returns the stored form of d, or a refusal.
func (m *messages) storable(d amqp.Delivery) ([]byte, error) {
	message, err := wire.EncodeDelivery(d)
	if err == nil && len(message) > m.maxStored {
		err = fmt.Errorf("the message would take %d bytes to store, more than %s %d", len(message), m.keys.Option("MaxStored"), m.maxStored)
	}
	if err != nil {
		return nil, engine.Refusal(err)
	}
	return message, nil
}
