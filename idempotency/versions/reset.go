package versions

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

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

// Reset sets the last handled key of a source, which may differ in length from the previous one. An
// operator uses it after a message with a key that was far too high: all later ones were treated as
// duplicates. These were acked and do not come again; have the source send them again. Latest.Reset
// shows the SQL statement.
func (h *HighWater) Reset(ctx context.Context, db *sql.DB, source, key string) error {
	var before string
	err := engine.InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) (err error) {
		if before, err = h.marks.LockMark(ctx, tx, h.engine.Consumer, source); err != nil {
			return err
		}
		return h.marks.SetMark(ctx, tx, h.engine.Consumer, source, key)
	})
	if err != nil {
		return fmt.Errorf("reset source %q: %w", source, err)
	}
	h.engine.Log.Warn("key reset", "source", source, "from", before, "to", key)
	return nil
}
