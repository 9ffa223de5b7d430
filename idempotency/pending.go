package idempotency

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A State is the state of a pending message.
type State = driver.State

// The states of a pending message.
const (
	Started  = driver.Started  // of AtMostOnce: its effect may be under way
	Doubtful = driver.Doubtful // of AtMostOnce: nobody knows whether its effect was done
	Ready    = driver.Ready    // to be handled by Work, or by Resume
	Failed   = driver.Failed   // given up by Work, or by Resume
)

// ErrNotPending: the key is not pending, or another has just changed it. Look again.
var ErrNotPending = errors.New("message is not pending")

// ErrUnderWay: the message's effect may be under way. Wait until it ends or is doubtful.
var ErrUnderWay = errors.New("message is being handled")

var errUnreadable = backoff.Permanent(errors.New("stored message cannot be read"))

// A Pending is a message whose key is claimed and which is not done.
type Pending struct {
	Key      string
	State    State
	Attempts int       // how often it was begun
	Since    time.Time // of its first claim, by the database's clock, to the millisecond
	Error    string    // why the latest attempt failed, or what is in doubt

	// Stored tells whether the inbox has the message. If not, the message is still in its
	// queue: its process died, and the redelivery is yet to come.
	Stored  bool
	Message amqp.Delivery // as it was delivered; it cannot be acked
}

func newPending(p driver.Pending) (Pending, error) {
	pending := Pending{Key: p.Key, State: p.State, Attempts: p.Attempts, Since: p.Since, Error: p.Error, Stored: len(p.Message) > 0}
	if !pending.Stored {
		return pending, nil
	}
	var err error
	pending.Message, err = decodeMessage(p.Message)
	return pending, err
}

// Pending returns up to limit messages in a state, in the order of their keys, beginning after
// a given key; "" is before all. It holds all of these messages in memory. First it makes overdue
// started messages doubtful, as CountPending, MarkDone, Retry and Resume do.
func (g *Guard) Pending(ctx context.Context, db *sql.DB, state State, after string, limit int) ([]Pending, error) {
	var found []driver.Pending
	err := inOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		if _, err = g.inbox.DoubtOverdue(ctx, tx, g.consumer); err != nil {
			return err
		}
		if found, err = g.inbox.ListPending(ctx, tx, g.consumer, state, after, limit); err != nil {
			return err
		}
		return g.fetch(ctx, tx, found)
	})
	if err != nil {
		return nil, fmt.Errorf("list %s messages: %w", state, err)
	}
	pending := make([]Pending, len(found))
	for i, p := range found {
		if pending[i], err = newPending(p); err != nil {
			pending[i].Error += fmt.Sprintf(" (%v)", err)
		}
	}
	return pending, nil
}

// fetch reads the messages of the rows that have one. A row that has gone meanwhile stays without.
func (g *Guard) fetch(ctx context.Context, tx bridge.Tx, found []driver.Pending) error {
	for i, p := range found {
		if !p.Stored {
			continue
		}
		_, now, err := g.inbox.LookUp(ctx, tx, g.consumer, p.Key)
		if err != nil {
			return err
		}
		if now != nil {
			found[i].Message = now.Message
		}
	}
	return nil
}

// CountPending tells how many messages are in each state: a metric to watch.
func (g *Guard) CountPending(ctx context.Context, db *sql.DB) (map[State]int64, error) {
	var counts map[State]int64
	err := inOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		if _, err = g.inbox.DoubtOverdue(ctx, tx, g.consumer); err != nil {
			return err
		}
		counts, err = g.inbox.CountPending(ctx, tx, g.consumer)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("count pending messages: %w", err)
	}
	return counts, nil
}

// MarkDone says that a doubtful message's effect was done, or that nothing remains to be done
// for a failed or ready one. Its copies are duplicates from then on. If the message is in no
// such state, MarkDone returns ErrNotPending or ErrUnderWay.
func (g *Guard) MarkDone(ctx context.Context, db *sql.DB, key string) error {
	return wrapKey("mark done message", key, g.decide(ctx, db, key, true))
}

// Retry says that a doubtful message's effect was not done, or that a failed message is to be
// tried again. Resume or Work will do it, with all of Options.Attempts. If the message is in no
// such state, Retry returns ErrNotPending or ErrUnderWay.
func (g *Guard) Retry(ctx context.Context, db *sql.DB, key string) error {
	return wrapKey("retry message", key, g.decide(ctx, db, key, false))
}

func wrapKey(doing, key string, err error) error {
	if err != nil {
		return fmt.Errorf("%s %q: %w", doing, key, err)
	}
	return nil
}

func (g *Guard) decide(ctx context.Context, db *sql.DB, key string, done bool) error {
	var found *driver.Pending
	err := inOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		if _, err = g.inbox.DoubtOverdue(ctx, tx, g.consumer); err == nil {
			_, found, err = g.inbox.LookUp(ctx, tx, g.consumer, key)
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
	return g.resolve(ctx, db, *found, done)
}

// resolve ends a message, or makes it ready, unless its row has changed since it was
// found.
func (g *Guard) resolve(ctx context.Context, db *sql.DB, found driver.Pending, done bool) error {
	var changed bool
	err := inOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		if done {
			changed, err = g.inbox.RemovePending(ctx, tx, g.consumer, found.Key, found.Run)
			return err
		}
		changed, err = g.inbox.ChangePending(ctx, tx, g.consumer, found.Run, driver.Pending{
			Key: found.Key, State: Ready, Run: uuid.NewString(), Error: found.Error}, 0)
		return err
	})
	if err == nil && !changed {
		return ErrNotPending
	}
	if err == nil {
		g.signal()
	}
	return err
}
