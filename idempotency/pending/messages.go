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

// messages are the claimed messages of one consumer that are not done.
type messages struct {
	keys      *engine.Keys
	inbox     driver.PendingMessages // of keys
	hold      time.Duration          // how long a run has its row
	every     time.Duration          // the option Poll
	maxStored int
	added     chan struct{} // signals new work to await
}

func newMessages(inbox driver.PendingMessages, consumer, optionsName string, opts engine.Options, poll time.Duration, maxStored int) (*messages, error) {
	keys, err := engine.NewKeys(inbox, consumer, optionsName, opts)
	if err != nil {
		return nil, err
	}
	m := &messages{keys: keys, inbox: inbox, every: poll, maxStored: maxStored, added: make(chan struct{}, 1)}
	if m.every == 0 {
		m.every = time.Second
	}
	if m.maxStored == 0 {
		m.maxStored = 15 << 20
	}
	switch {
	case m.every < 0:
		return nil, fmt.Errorf("%s is %v, must not be negative", keys.Option("Poll"), m.every)
	case m.maxStored < 0:
		return nil, fmt.Errorf("%s is %d, must not be negative", keys.Option("MaxStored"), m.maxStored)
	}
	return m, nil
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
