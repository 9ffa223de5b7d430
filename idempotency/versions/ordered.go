package versions

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// An Ordered handles the events of each entity once, strictly in the order of their versions:
// version n only after n-1. An event that comes too early is kept in the database, acked, and
// handled when its turn comes.
//
// Use it if every event is a change that builds on the previous one, and each entity counts its
// changes without a hole: the lines of an account, the steps of an order. The messages may come in
// any order, and twice. Any number of consumers may share the work.
//
// Do not use it if versions may be missing. A sequence of the database leaves a hole at every
// rollback; count in the entity's row instead. If each event carries the whole state, use Latest,
// which waits for no version.
//
// # The first version
//
// The first version of an entity without a row is OrderedOptions.Start, 1 unless set. If a consumer
// is added later and does not get the events from the beginning, call Skip with the present version
// of each entity; otherwise it keeps their events and waits.
//
// # Gaps
//
// A version may be missing because it was dead-lettered, by this consumer or by the verifier, or
// because it was never sent. It stops its entity and no other. Gaps lists the waiting entities;
// Watch reports entities that have waited for longer than OrderedOptions.GapAge. Put the missing
// event back in the queue, or go on without it by Skip.
//
// # A kept event that fails
//
// A kept event is not dead-lettered, because there is no delivery to reject any more. It stays in
// the store, its entity waits for it as for a missing one (Gaps then shows a Missing that is equal
// to First), and it is tried again once with every delivery for that entity and every round of
// Watch. Each failure is logged. If the connection is dead after its handler, the database may be
// to blame: a delivery tries again, and counts a failure of the event after three such attempts in
// a row.
//
// # At a crash
//
// Every event is unacked in the queue, or kept, or handled. Keeping an event is one transaction.
// Handling it is another, together with the mark, the handler's effects and the deletion from the
// store. So no event is lost or handled twice. If the process dies between the handling of version n
// and of a kept n+1, the delivery of n is not acked yet. It comes again, is recognized as a duplicate,
// and n+1 is handled.
type Ordered struct {
	engine    *engine.Engine
	keeper    driver.Keeper
	versionOf VersionFunc
	opts      OrderedOptions
	oldGaps   atomic.Int64
}

// NewOrdered returns an Ordered that keeps its versions and events in keeper, in the name of
// consumer. Every inbox of this module is a driver.Keeper. Name and opts follow the rules of
// idempotency.New; a name must not be shared with another strategy.
func NewOrdered(keeper driver.Keeper, consumer string, versionOf VersionFunc, opts *OrderedOptions) (*Ordered, error) {
	switch {
	case keeper == nil:
		return nil, errors.New("new ordered: keeper is nil")
	case versionOf == nil:
		return nil, errors.New("new ordered: versionOf is nil")
	}
	filled, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("new ordered: %w", err)
	}
	e, err := newEngine(keeper, consumer, &filled.Options)
	if err != nil {
		return nil, fmt.Errorf("new ordered: %w", err)
	}
	e.InPlace = true // otherwise all later events of the entity would be kept meanwhile
	return &Ordered{engine: e, keeper: keeper, versionOf: versionOf, opts: filled}, nil
}

// An EventFunc handles an event: the current delivery, or a kept one, which has the whole message
// and can be neither acked nor rejected. Otherwise it is like fn of idempotency.Deduplicator.Handle.
type EventFunc func(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error

// lostEnough is the number of connections lost in a row after which a kept event counts as failed.
// If the database was to blame, no harm is done: the event is tried again later.
const lostEnough = 3

// Handle handles d if its turn has come, and then the kept events that follow it, each in a
// separate transaction on db; or it keeps d. Then it acks d. An event that was handled or kept
// before is acked and counted in Stats.Duplicates.
//
// If two events of one entity come at the same moment, the second waits for the end of the first one's
// transaction, and is then judged. Errors and failures are as with idempotency.Deduplicator.Handle,
// except for kept events (see Ordered).
func (o *Ordered) Handle(ctx context.Context, db *sql.DB, d amqp.Delivery, fn EventFunc) error {
	if db == nil || fn == nil {
		panic("versions: Handle needs a database and a function")
	}
	ended, due, lost := engine.Unfinished, false, 0
	return o.engine.Deliver(ctx, d, func(ctx context.Context) (engine.Outcome, error) {
		entity, version, err := versionOf(o.engine, d, o.versionOf)
		if err != nil {
			return engine.Unfinished, err
		}
		if ended == engine.Unfinished {
			if ended, due, err = o.arrive(ctx, db, d, entity, version, fn); err != nil {
				ended = engine.Unfinished
				return engine.Unfinished, err
			}
		}
		if due {
			err := o.catchUp(ctx, db, entity, fn)
			if lost++; ctx.Err() != nil || !engine.IsLost(err) {
				lost = 0
			}
			switch {
			case lost == lostEnough:
				o.engine.Count.FailedAttempts.Add(1)
				o.engine.Log.Error("kept event failed, its entity waits", "entity", entity, "error", err)
			case err != nil:
				return engine.Unfinished, err // d is done; only the kept events are tried again
			}
		}
		return ended, nil
	})
}

// arrive handles d, or keeps it, or does neither for a duplicate. It reports whether the next event
// is kept.
func (o *Ordered) arrive(ctx context.Context, db *sql.DB, d amqp.Delivery, entity string, version int64, fn EventFunc) (ended engine.Outcome, due bool, err error) {
	ended, err = o.engine.InTx(ctx, db, func(ctx context.Context, tx *sql.Tx) (engine.Outcome, error) {
		last, err := o.lock(ctx, bridge.SQL(tx), entity)
		if err != nil {
			return engine.Unfinished, err
		}
		if version-1 == last {
			if due, err = o.advance(ctx, bridge.SQL(tx), entity, version); err != nil {
				return engine.Unfinished, err
			}
			return engine.Handled, o.engine.Run(d.MessageId, func() error { return fn(ctx, tx, d) })
		}
		ended := engine.Duplicate
		if version > last {
			if ended, err = o.keep(ctx, bridge.SQL(tx), d, entity, version); err != nil {
				return engine.Unfinished, err
			}
		}
		due, err = o.isDue(ctx, bridge.SQL(tx), entity, last)
		return ended, err
	})
	return ended, due, err
}

// catchUp handles the kept events of an entity whose turn has come. It ends at an event that fails,
// without an error.
func (o *Ordered) catchUp(ctx context.Context, db *sql.DB, entity string, fn EventFunc) error {
	for due := true; due; {
		var version int64
		var event amqp.Delivery
		ended, err := o.engine.InTx(ctx, db, func(ctx context.Context, tx *sql.Tx) (_ engine.Outcome, err error) {
			last, err := o.lock(ctx, bridge.SQL(tx), entity)
			if err != nil {
				return engine.Unfinished, err
			}
			var message []byte
			version, message, err = o.keeper.FirstKept(ctx, bridge.SQL(tx), o.engine.Consumer, entity)
			if err != nil {
				return engine.Unfinished, err
			}
			if message == nil || version-1 != last {
				due = false // another consumer has handled it
				return engine.Duplicate, nil
			}
			if event, err = engine.DecodeMessage(message); err != nil {
				return engine.Unfinished, engine.Failure(err)
			}
			if due, err = o.advance(ctx, bridge.SQL(tx), entity, version); err != nil {
				return engine.Unfinished, err
			}
			return engine.Handled, o.engine.Run(event.MessageId, func() error { return fn(ctx, tx, event) })
		})
		switch {
		case err == nil && ended == engine.Handled:
			o.engine.Count.Released.Add(1)
		case ctx.Err() == nil && engine.IsFailure(err):
			o.engine.Count.FailedAttempts.Add(1)
			o.engine.Log.Error("kept event failed, its entity waits", "message_id", event.MessageId,
				"entity", entity, "version", version, "error", err)
			return nil
		case err != nil:
			return fmt.Errorf("handle kept version %d of entity %q: %w", version, entity, err)
		}
	}
	return nil
}

// Stats returns the counts so far.
func (o *Ordered) Stats() idempotency.Stats { return idempotency.Stats(o.engine.Stats()) }

// The steps within one transaction of an Ordered. All except lock run after lock.

// lock locks the entity and returns the last handled version.
func (o *Ordered) lock(ctx context.Context, tx bridge.Tx, entity string) (int64, error) {
	return lockVersion(ctx, tx, o.keeper, o.engine.Consumer, entity, *o.opts.Start-1)
}

// keep stores an event that has come too early.
func (o *Ordered) keep(ctx context.Context, tx bridge.Tx, d amqp.Delivery, entity string, version int64) (engine.Outcome, error) {
	message, err := wire.EncodeDelivery(d)
	if err != nil {
		return engine.Unfinished, engine.Refusal(err)
	}
	if len(message) > o.opts.MaxKeptBytes {
		return engine.Unfinished, engine.Refusal(fmt.Errorf("version %d of entity %q is too early, and too large to be kept: %d bytes, at most %d",
			version, entity, len(message), o.opts.MaxKeptBytes))
	}
	fresh, err := o.keeper.Keep(ctx, tx, o.engine.Consumer, entity, version, message)
	if err != nil {
		return engine.Unfinished, err
	}
	if !fresh {
		return engine.Duplicate, nil
	}
	n, err := o.keeper.CountKept(ctx, tx, o.engine.Consumer, entity)
	if err != nil {
		return engine.Unfinished, err
	}
	if n > o.opts.MaxKept {
		return engine.Unfinished, engine.Refusal(fmt.Errorf("version %d of entity %q is too early, and %d events of it are kept already",
			version, entity, o.opts.MaxKept))
	}
	return engine.Kept, nil
}

// advance makes version the last one, deletes it from the store if it was kept, and reports whether
// the next one is kept.
func (o *Ordered) advance(ctx context.Context, tx bridge.Tx, entity string, version int64) (due bool, err error) {
	if err := setVersion(ctx, tx, o.keeper, o.engine.Consumer, entity, version); err != nil {
		return false, err
	}
	first, message, err := o.keeper.FirstKept(ctx, tx, o.engine.Consumer, entity)
	if err != nil || message == nil {
		return false, err
	}
	if first == version {
		if err := o.keeper.Unkeep(ctx, tx, o.engine.Consumer, entity, version); err != nil {
			return false, err
		}
		return o.isDue(ctx, tx, entity, version)
	}
	return first-1 == version, nil
}

// isDue reports whether the version after last is kept.
func (o *Ordered) isDue(ctx context.Context, tx bridge.Tx, entity string, last int64) (bool, error) {
	first, message, err := o.keeper.FirstKept(ctx, tx, o.engine.Consumer, entity)
	return message != nil && first-1 == last, err
}
