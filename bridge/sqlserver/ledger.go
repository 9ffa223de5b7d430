package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// A Ledger is the ledger in one SQL Server database. It implements driver.Ledger.
//
// At every isolation level of tx, Record inserts 500 rows per statement, or about a mebibyte of
// carried messages. After an error roll back. With XACT_ABORT ON, or as the victim of a deadlock,
// tx is rolled back already.
type Ledger struct {
	portable.Ledger
	db     *sqlx.DB
	schema schema.Name
	*lookups
	byInsert atomic.Pointer[error] // why Settle waits by an INSERT; nil: it does not
}

var _ driver.Ledger = (*Ledger)(nil)

// Open reads the identity of the ledger in db, and checks that this database can keep a ledger. If
// the tables are missing, or not as migrate.Ledger makes them, the error wraps bridge.ErrNoSchema.
// db stays the caller's.
func Open(ctx context.Context, db *sql.DB) (*Ledger, error) { return Schema("").Open(ctx, db) }

func (l *Ledger) verbs() portable.Verbs {
	return portable.Verbs{
		Classify:    func(err error, doing string) error { return classify(l.schema, err, l.rightsTo(doing)) },
		Most:        chunk,
		Tick:        time.Millisecond,
		Identity:    l.readIdentity,
		Record:      l.record,
		Carry:       l.carry,
		Cancel:      l.cancel,
		Due:         l.due,
		Claim:       l.claim,
		Touch:       l.touch,
		Instance:    nameInstance,
		Committed:   l.lookUp,
		Settle:      l.settle,
		Recent:      l.recent,
		Forget:      l.forget,
		Orphans:     l.orphans,
		Raise:       l.raise,
		Remove:      l.sweep,
		SweptBefore: l.sweptBefore,
	}
}

const (
	recordRights = "INSERT ON bridge_ledger, SELECT ON bridge_identity"
	stateRights  = "SELECT ON bridge_identity, SELECT ON bridge_ledger_version"
	readRights   = "SELECT ON bridge_ledger, SELECT ON bridge_identity"
)

// rightsTo lists the rights that the portable verbs need, in the words of GRANT. The lookups'
// rights depend on the table.
var rightsTo = map[string]string{
	portable.Opening:          stateRights,
	portable.Checking:         stateRights,
	portable.Recording:        recordRights,
	portable.Carrying:         recordRights,
	portable.Cancelling:       "SELECT, DELETE ON bridge_ledger",
	portable.ListingDue:       readRights,
	portable.Claiming:         "SELECT, UPDATE ON bridge_ledger",
	portable.Touching:         "SELECT, UPDATE ON bridge_ledger",
	portable.Forgetting:       "SELECT, DELETE ON bridge_ledger",
	portable.ListingOrphans:   readRights,
	portable.Sweeping:         readRights + ", DELETE ON bridge_ledger, SELECT, UPDATE ON bridge_watermark",
	portable.ReadingWatermark: "SELECT ON bridge_watermark, SELECT ON bridge_identity",
}

func (l *Ledger) rightsTo(doing string) string {
	if doing == portable.Settling && l.byInsert.Load() != nil {
		return recordRights
	}
	return cmp.Or(rightsTo[doing], l.rights)
}

func (l *Ledger) record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) (changed int64, err error) {
	for ids := range slices.Chunk(ids, chunk) {
		text, packed, used := record.fill(l.schema, ids)
		n, err := tx.Exec(ctx, text, packed, used, argument(l.Identity()))
		if changed += n; err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// lookUp reads the committed rows of ids, 500 per statement, as of the statement or without locked
// rows. While the whole table is locked, as by ALTER TABLE, it finds none.
func (l *Ledger) lookUp(ctx context.Context, ids []uuid.UUID) (found []uuid.UUID, from driver.Instance, err error) {
	for ids := range slices.Chunk(ids, chunk) {
		var some []uuid.UUID
		var answers driver.Instance
		err := try(ctx, func(ctx context.Context) (err error) {
			some, answers, err = l.find(ctx, l.db, l.committed(), ids)
			return err
		})
		if mssql.Number(err) == mssql.LockTimeout {
			// The setting may have changed: then the next lookup uses the other statement.
			some, answers, err = nil, from, l.readSetting(ctx, l.db)
		}
		if err == nil && from != "" && from != answers {
			err = fmt.Errorf("%w: %s, then %s", bridge.ErrOtherInstance, from, answers)
		}
		if err != nil {
			return nil, "", err
		}
		found, from = append(found, some...), answers
	}
	return found, from, nil
}

// recent finds no row while the whole table is locked.
func (l *Ledger) recent(ctx context.Context, ids []uuid.UUID, age time.Duration) (found []uuid.UUID, from driver.Instance, err error) {
	err = try(ctx, func(ctx context.Context) (err error) {
		found, from, err = l.find(ctx, l.db, l.recently(), ids, int64(min(age, math.MaxInt32*time.Millisecond)/time.Millisecond))
		return err
	})
	if mssql.Number(err) == mssql.LockTimeout {
		return nil, "", nil
	}
	return found, from, err
}

func (l *Ledger) forget(ctx context.Context, ids []uuid.UUID) (left []uuid.UUID, err error) {
	gone, locked, err := forget.run(ids, l.change(ctx))
	if err != nil {
		return nil, err
	}
	known := make(map[uuid.UUID]bool, len(ids))
	for _, id := range slices.Concat(gone, locked) {
		known[id] = true
	}
	for _, id := range ids { // as a rule all are gone, and no statement is sent
		if known[id] {
			continue
		}
		known[id] = true
		there, err := l.stays(ctx, id)
		if err != nil {
			return nil, err
		}
		if there {
			left = append(left, id)
		}
	}
	return append(left, locked...), nil
}

// stays reports whether the row of an ID exists or is locked.
func (l *Ledger) stays(ctx context.Context, id uuid.UUID) (bool, error) {
	var found []uuid.UUID
	err := try(ctx, func(ctx context.Context) (err error) {
		found, _, err = l.find(ctx, l.db, stays, []uuid.UUID{id})
		return err
	})
	if mssql.Number(err) == mssql.LockTimeout {
		return true, nil
	}
	return len(found) > 0, err
}
