package pending

import (
	"context"
	"database/sql"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// A Guard handles each message of one consumer by [Guard.AtMostOnce], or by [Guard.Accept] and
// [Guard.Work]. A consumer should use one of the two for all its messages. A Guard is safe for
// concurrent use, and starts no goroutines. In memory it keeps the same data as an
// idempotency.Guard.
type Guard struct {
	keys  *engine.Keys
	opts  Options
	added chan struct{} // signals new work to await
}

// New returns a Guard that claims keys in inbox in the name of consumer. Name and opts follow the
// rules of idempotency.New.
func New(inbox driver.Inbox, consumer string, opts *Options) (*Guard, error) {
	keys, filled, err := newKeys(inbox, consumer, opts)
	if err != nil {
		return nil, fmt.Errorf("new guard: %w", err)
	}
	return &Guard{keys: keys, opts: filled, added: make(chan struct{}, 1)}, nil
}

// Purge is idempotency.Guard.Purge. AtMostOnce and Accept purge too.
func (g *Guard) Purge(ctx context.Context, db *sql.DB) (forgotten int64, err error) {
	return g.keys.Purge(ctx, db)
}

// Stats returns the counts so far. Messages that Work and Resume end count once more, as Handled,
// Kept or Doubtful.
func (g *Guard) Stats() idempotency.Stats { return idempotency.Stats(g.keys.Stats()) }

// storable returns the stored form of d, or a refusal.
func (g *Guard) storable(d amqp.Delivery) ([]byte, error) {
	message, err := wire.EncodeDelivery(d)
	if err == nil && len(message) > g.opts.MaxStored {
		err = fmt.Errorf("the message would take %d bytes to store, more than Options.MaxStored %d", len(message), g.opts.MaxStored)
	}
	if err != nil {
		return nil, engine.Refusal(err)
	}
	return message, nil
}
