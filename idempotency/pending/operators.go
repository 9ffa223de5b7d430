package pending

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// A State is the state of a pending message.
type State = driver.State

// The states of a pending message.
const (
	Started  = driver.Started  // of AtMostOnce: its effect may be under way
	Doubtful = driver.Doubtful // of AtMostOnce: its effect may have been done
	Ready    = driver.Ready    // to be handled by Work, or by Resume
	Failed   = driver.Failed   // given up by Work, or by Resume
)

// ErrNotPending: the key is not pending, or its row has just changed. Look again.
var ErrNotPending = errors.New("message is not pending")

// ErrUnderWay: the message's effect may be under way. Wait until it ends or is doubtful.
var ErrUnderWay = errors.New("message is being handled")

var errUnreadable = backoff.Permanent(errors.New("stored message cannot be read"))

// A Message is a message whose key is claimed and which is not done.
type Message struct {
	Key      string
	State    State
	Attempts int       // number of attempts that have begun and count
	Since    time.Time // of its first claim, by the database's clock, to the millisecond
	Error    string    // why the latest attempt failed, or why the message is doubtful

	// Stored reports whether the inbox has the message. If not, the message is still in its queue: its
	// process died, and the redelivery is yet to come.
	Stored   bool
	Delivery amqp.Delivery // as it was delivered; it cannot be acked
}

func newMessage(p driver.Pending) (Message, error) {
	m := Message{Key: p.Key, State: p.State, Attempts: p.Attempts, Since: p.Since, Error: p.Error, Stored: len(p.Message) > 0}
	if !m.Stored {
		return m, nil
	}
	var err error
	m.Delivery, err = engine.DecodeMessage(p.Message)
	return m, err
}

// List returns up to limit messages in a state, in the order of their keys, after a given key; ""
// is before all. It holds all of these messages in memory. First it makes overdue started messages
// doubtful, as Count, MarkDone, Retry and Resume do.
func (m *messages) List(ctx context.Context, db *sql.DB, state State, after string, limit int) ([]Message, error) {
	var found []driver.Pending
	err := engine.InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		if _, err = m.inbox.DoubtOverdue(ctx, tx, m.keys.Consumer); err != nil {
			return err
		}
		if found, err = m.inbox.ListPending(ctx, tx, m.keys.Consumer, state, after, limit); err != nil {
			return err
		}
		return m.fetch(ctx, tx, found)
	})
	if err != nil {
		return nil, fmt.Errorf("list %s messages: %w", state, err)
	}
	pending := make([]Message, len(found))
	for i, p := range found {
		if pending[i], err = newMessage(p); err != nil {
			pending[i].Error += fmt.Sprintf(" (%v)", err)
		}
	}
	return pending, nil
}

// fetch reads the stored messages of rows. A row that has gone meanwhile gets none.
func (m *messages) fetch(ctx context.Context, tx bridge.Tx, found []driver.Pending) error {
	for i, p := range found {
		if !p.Stored {
			continue
		}
		_, now, err := m.inbox.LookUp(ctx, tx, m.keys.Consumer, p.Key)
		if err != nil {
			return err
		}
		if now != nil {
			found[i].Message = now.Message
		}
	}
	return nil
}

// Count returns the number of messages in each state: a metric to watch.
func (m *messages) Count(ctx context.Context, db *sql.DB) (map[State]int64, error) {
	var counts map[State]int64
	err := engine.InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		if _, err = m.inbox.DoubtOverdue(ctx, tx, m.keys.Consumer); err != nil {
			return err
		}
		counts, err = m.inbox.CountPending(ctx, tx, m.keys.Consumer)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("count pending messages: %w", err)
	}
	return counts, nil
}

// MarkDone records that a doubtful message's effect was done, or that nothing remains to be done
// for a failed or ready one. Its copies are duplicates from then on. If the message is in no such
// state, MarkDone returns ErrNotPending or ErrUnderWay.
func (m *messages) MarkDone(ctx context.Context, db *sql.DB, key string) error {
	return wrapKey("mark done message", key, m.decide(ctx, db, key, done))
}

// Retry records that a doubtful message's effect was not done, or that a failed message is to be
// tried again, and ends the pause of a ready one. Resume or Work then tries the message at once,
// with all of Options.Attempts. If the message is in no such state, Retry returns ErrNotPending or
// ErrUnderWay.
func (m *messages) Retry(ctx context.Context, db *sql.DB, key string) error {
	return wrapKey("retry message", key, m.decide(ctx, db, key, again))
}

func wrapKey(doing, key string, err error) error {
	if err != nil {
		return fmt.Errorf("%s %q: %w", doing, key, err)
	}
	return nil
}

func (m *messages) decide(ctx context.Context, db *sql.DB, key string, what event) error {
	var found *driver.Pending
	err := engine.InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		if _, err = m.inbox.DoubtOverdue(ctx, tx, m.keys.Consumer); err == nil {
			_, found, err = m.inbox.LookUp(ctx, tx, m.keys.Consumer, key)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case found == nil:
		return ErrNotPending
	case found.State == Started:
		return ErrUnderWay
	}
	return m.resolve(ctx, db, *found, what)
}
