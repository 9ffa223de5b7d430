package versions

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// A Latest handles an event only if no later one of its entity has been handled. It keeps one row
// for each entity, with the last handled version.
//
// Use it if every event carries the whole state of its entity, so that the latest event replaces
// the others: a price, an address, a document to be indexed. The messages may come in any order,
// and twice. Any number of consumers may share the work. The handler may see gaps: versions that
// were overtaken are never handled.
//
// Do not use it if an event is a change to be added to earlier ones (a booking, a quantity): a
// change that is overtaken would be lost. For such events use Ordered if the order matters,
// otherwise an idempotency.Deduplicator.
//
// One event with a version that is far too high makes all later ones of its entity stale. So let
// the VersionFunc refuse an impossible version: the event is dead-lettered with that reason, and
// the entity goes on. Without that, Stats.Stale grows until a Reset.
//
// The rows stay. If an entity is gone for good, its row may be deleted from bridge_mark when no
// copy of its events can be under way any more.
type Latest struct {
	engine    *engine.Engine
	marks     driver.Marks
	versionOf VersionFunc
}

// NewLatest returns a Latest that keeps its versions in marks, in the name of consumer. Every inbox
// of this module is a driver.Marks. Name and opts follow the rules of idempotency.New; a name must
// not be shared with another strategy.
func NewLatest(marks driver.Marks, consumer string, versionOf VersionFunc, opts *Options) (*Latest, error) {
	switch {
	case marks == nil:
		return nil, errors.New("new latest: marks is nil")
	case versionOf == nil:
		return nil, errors.New("new latest: versionOf is nil")
	}
	e, err := newEngine(marks, consumer, opts)
	if err != nil {
		return nil, fmt.Errorf("new latest: %w", err)
	}
	return &Latest{e, marks, versionOf}, nil
}

// Handle runs fn if d is newer than all handled events of its entity. fn and the new version are in
// one transaction on db; Handle acks d after the commit. An event that is not newer is acked, and
// counted in Stats.Stale.
//
// If two events of one entity come at the same moment, the second waits for the end of the first
// one's transaction, and is then judged. fn, errors and failures are as with
// idempotency.Deduplicator.Handle.
//
// After a crash before the commit nothing has happened, and the event comes again. After a crash
// between the commit and the ack it also comes again, and is stale.
func (l *Latest) Handle(ctx context.Context, db *sql.DB, d amqp.Delivery, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if db == nil || fn == nil {
		panic("versions: Handle needs a database and a function")
	}
	return l.engine.Deliver(ctx, d, func(ctx context.Context) (engine.Outcome, error) {
		entity, version, err := versionOf(l.engine, d, l.versionOf)
		if err != nil {
			return engine.Unfinished, err
		}
		return l.engine.InTx(ctx, db, func(ctx context.Context, tx *sql.Tx) (engine.Outcome, error) {
			last, err := lockVersion(ctx, bridge.SQL(tx), l.marks, l.engine.Consumer, entity, none)
			if err != nil {
				return engine.Unfinished, err
			}
			if version <= last {
				return engine.Stale, nil
			}
			if err := setVersion(ctx, bridge.SQL(tx), l.marks, l.engine.Consumer, entity, version); err != nil {
				return engine.Unfinished, err
			}
			return engine.Handled, l.engine.Run(d.MessageId, func() error { return fn(ctx, tx) })
		})
	})
}

// Reset sets the last handled version of an entity, to any version from -1 (none) on: the next
// handled event is one above it. An operator uses it after an event with a version that was far too
// high has made all later ones stale. Events that were acked as stale meanwhile do not come again:
// have the sender send the entity's state again.
//
// The same in SQL; on SQL Server, CAST each text AS varbinary(255):
//
//	UPDATE bridge_mark SET mark = '41' WHERE consumer = 'shipping' AND name = 'customer/17'
func (l *Latest) Reset(ctx context.Context, db *sql.DB, entity string, version int64) error {
	if version < none {
		return fmt.Errorf("reset entity %q: version %d is below -1", entity, version)
	}
	before := int64(none)
	err := engine.InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		if before, err = lockVersion(ctx, tx, l.marks, l.engine.Consumer, entity, none); err != nil {
			return err
		}
		return setVersion(ctx, tx, l.marks, l.engine.Consumer, entity, version)
	})
	if err != nil {
		return fmt.Errorf("reset entity %q: %w", entity, err)
	}
	l.engine.Log.Warn("version reset", "entity", entity, "from", before, "to", version)
	return nil
}

// Stats returns the counts so far.
func (l *Latest) Stats() idempotency.Stats { return idempotency.Stats(l.engine.Stats()) }
