package versions

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// A Gap is an entity with kept events.
type Gap struct {
	Entity  string
	Missing int64         // the entity waits for this version
	First   int64         // the lowest kept version; if it is Missing, its handling fails, or is about to begin
	Kept    int           // number of kept events
	Age     time.Duration // since the oldest of them was kept, in whole seconds
}

// Gaps returns at most limit entities with kept events, the longest waiting first. It reads all
// kept rows of the consumer, without the messages.
func (o *Ordered) Gaps(ctx context.Context, db *sql.DB, limit int) ([]Gap, error) {
	var entities []driver.KeptEntity
	err := engine.InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		entities, err = o.keeper.KeptEntities(ctx, tx, o.engine.Consumer, limit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list gaps: %w", err)
	}
	gaps := make([]Gap, len(entities))
	for i, e := range entities {
		last := *o.opts.Start - 1
		if e.Mark != "" {
			if last, err = versionIn(e.Mark, o.engine.Consumer, e.Entity); err != nil {
				return nil, fmt.Errorf("list gaps: %w", err)
			}
		}
		gaps[i] = Gap{e.Entity, last + 1, e.First, e.Kept, e.Age}
	}
	return gaps, nil
}

// ErrNotWaiting: the version was handled or skipped before.
var ErrNotWaiting = errors.New("the entity does not wait for this version")

// Skip gives up all versions of an entity up to and including through. The entity goes on with the
// next one. An operator uses it if these versions will not come, or if a consumer begins after
// them. If one of them comes later, it is acked as a duplicate.
//
// If events of these versions are kept, Skip calls instead for each of them, in order, in the
// transaction that deletes them from the store. instead may store them elsewhere, or handle them in
// another way. If it fails, nothing is skipped. If it is nil and there are such events, Skip fails.
//
// Kept events that are due after that are handled with the entity's next delivery, or by Watch. If
// the entity does not wait for through, the error is ErrNotWaiting. A repeated Skip also returns
// it, if the first one had committed.
func (o *Ordered) Skip(ctx context.Context, db *sql.DB, entity string, through int64, instead EventFunc) error {
	var last int64
	_, err := o.engine.InTx(ctx, db, func(ctx context.Context, tx *sql.Tx) (_ engine.Outcome, err error) {
		if last, err = o.lock(ctx, bridge.SQL(tx), entity); err != nil {
			return engine.Unfinished, err
		}
		if through <= last {
			return engine.Unfinished, ErrNotWaiting
		}
		if err := setVersion(ctx, bridge.SQL(tx), o.keeper, o.engine.Consumer, entity, through); err != nil {
			return engine.Unfinished, err
		}
		for {
			version, message, err := o.keeper.FirstKept(ctx, bridge.SQL(tx), o.engine.Consumer, entity)
			if err != nil {
				return engine.Unfinished, err
			}
			if message == nil || version > through {
				return engine.Handled, nil
			}
			if err := o.skipKept(ctx, tx, entity, version, message, instead); err != nil {
				return engine.Unfinished, err
			}
		}
	})
	if err != nil {
		return fmt.Errorf("skip to version %d of entity %q: %w", through, entity, err)
	}
	o.engine.Log.Warn("versions skipped", "entity", entity, "from", last+1, "through", through)
	return nil
}

func (o *Ordered) skipKept(ctx context.Context, tx *sql.Tx, entity string, version int64, message []byte, instead EventFunc) error {
	if instead == nil {
		return fmt.Errorf("version %d is kept: skip it with a function that takes it", version)
	}
	event, err := engine.DecodeMessage(message)
	if err != nil {
		return err
	}
	if err := o.keeper.Unkeep(ctx, bridge.SQL(tx), o.engine.Consumer, entity, version); err != nil {
		return err
	}
	return o.engine.Run(event.MessageId, func() error { return instead(ctx, tx, event) })
}
