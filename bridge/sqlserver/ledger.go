package sqlserver

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// keepPlan is on the statements of every message. A ledger is empty most of the time, so
// its statistics go stale every 500 changes, and a statement that depends on them would
// be compiled anew each time. With FORCESEEK no plan is better than another.
const keepPlan = "\nOPTION (KEEPFIXED PLAN)"

// Every statement of ours sets what it depends on: a pooled connection may bring
// other settings. With parameters a text runs within sp_executesql, at whose end
// the server takes its SETs back.
var (
	// NOCOUNT would hide how many rows went in.
	record = forIDs(`SET NOCOUNT OFF;
INSERT INTO bridge_ledger (id)
SELECT asked.id FROM bridge_identity i CROSS JOIN $asked WHERE i.[identity] = CAST(@p3 AS uniqueidentifier)` + keepPlan)

	forget = forIDs(`SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
DELETE l FROM $asked INNER LOOP JOIN bridge_ledger l WITH (ROWLOCK, FORCESEEK) ON l.id = asked.id` + keepPlan)
)

// What the statements need, in the words of GRANT.
const (
	recordRights = "INSERT ON bridge_ledger, SELECT ON bridge_identity"
	forgetRights = "SELECT, DELETE ON bridge_ledger"
)

// A Ledger is the ledger in one SQL Server database. It implements inspect.Ledger.
type Ledger struct {
	tables.OnLedger
	db       *sqlx.DB
	identity uuid.UUID
	*lookups
	byInsert atomic.Pointer[error] // why Settle waits by an INSERT; nil: it does not
}

var _ inspect.Ledger = (*Ledger)(nil)

// Open reads the identity of the ledger in db, and checks that the database is one
// that a ledger can be kept in. It returns an error that wraps bridge.ErrNoSchema
// if the tables are not there, or are not as migrate.Ledger makes them. db stays
// the caller's.
func Open(ctx context.Context, db *sql.DB) (*Ledger, error) {
	l := &Ledger{db: sqlx.NewDb(db, "sqlserver"), lookups: lookupsIn("bridge_ledger", "id")}
	identity, err := l.readIdentity(ctx)
	if err == nil {
		err = l.readSetting(ctx, l.db)
	}
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	l.identity = identity
	return l, nil
}

// Identity returns the UUID that was made with the ledger's tables.
func (l *Ledger) Identity() uuid.UUID { return l.identity }

// DB returns the pool that Open was given.
func (l *Ledger) DB() *sql.DB { return l.db.DB }

// Record inserts the IDs in tx, at whatever isolation level it is, 500 per
// statement. After an error roll back: with XACT_ABORT ON, or as the victim of a
// deadlock, the server has done so already.
func (l *Ledger) Record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error {
	for ids := range slices.Chunk(ids, chunk) {
		text, packed, used := record.fill(ids)
		result, err := tx.ExecContext(ctx, text, packed, used, argument(l.identity))
		if err == nil {
			err = tables.ExpectChanged(result, len(ids), l.identity)
		}
		if err != nil {
			return fmt.Errorf("record %d IDs: %w", len(ids), classify(err, recordRights))
		}
	}
	return nil
}

// Committed reads the rows of ids, 500 per statement, as they were committed, or past
// those that are locked. While the whole table is locked, as by ALTER TABLE, it finds
// none.
func (l *Ledger) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	found := make([]uuid.UUID, 0, len(ids))
	for ids := range slices.Chunk(ids, chunk) {
		var some []uuid.UUID
		err := try(ctx, func(ctx context.Context) (err error) {
			some, err = l.find(ctx, l.db, l.committed(), ids)
			return err
		})
		if number(err) == lockTimeout {
			// Perhaps the setting has been changed: then the next lookup is another.
			some, err = nil, l.readSetting(ctx, l.db)
		}
		if err != nil {
			return nil, fmt.Errorf("look up %d IDs: %w", len(ids), classify(err, l.rights))
		}
		found = append(found, some...)
	}
	return found, nil
}

// Forget deletes the rows of ids, 500 per statement, each of which is committed at
// once. After an error or a crash some may be gone and some still there.
func (l *Ledger) Forget(ctx context.Context, ids []uuid.UUID) error {
	for ids := range slices.Chunk(ids, chunk) {
		text, packed, used := forget.fill(ids)
		err := try(ctx, func(ctx context.Context) error {
			_, err := l.db.ExecContext(ctx, text, packed, used)
			return err
		})
		if err != nil {
			return fmt.Errorf("forget %d IDs: %w", len(ids), classify(err, forgetRights))
		}
	}
	return nil
}
