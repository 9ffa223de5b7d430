package postgres

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// An OwnLedger is a ledger that reads a table of the application's, and does not change it. It
// implements driver.Ledger. Its Record locks the IDs until tx ends.
type OwnLedger struct {
	portable.OwnLedger
	reads ownTable
}

var _ driver.Ledger = (*OwnLedger)(nil)

// OpenOwnTable opens the ledger of db on a table of the application's own. The column must be of
// type uuid, with a unique index on it alone, in a logged table that the login may read without
// row-level security.
//
// Record takes an advisory lock per ID. All transactions of the server together have room for
// max_locks_per_transaction times its connections. Without room Record and the transaction fail.
func OpenOwnTable(ctx context.Context, db *sql.DB, own bridge.OwnTable) (*OwnLedger, error) {
	return Schema("").OpenOwnTable(ctx, db, own)
}

// OpenOwnTable opens the ledger with the bridge's tables in the schema, as the function
// OpenOwnTable does.
func (s Schema) OpenOwnTable(ctx context.Context, db *sql.DB, own bridge.OwnTable) (*OwnLedger, error) {
	ledger, err := s.Open(ctx, db)
	if err != nil {
		return nil, err
	}
	table, column, err := inspectOwn(ctx, ledger.db, own)
	if err != nil {
		return nil, fmt.Errorf("open own table: %w", err)
	}
	proof := proofLedger{newOwnLedger(ledger, bridge.OwnTable{Table: "bridge_ledger", Column: "id"}, "bridge_ledger", "id", nil), ledger}
	return newOwnLedger(ledger, own, table, column, proof), nil
}

// newOwnLedger expects quoted names.
func newOwnLedger(ledger *Ledger, own bridge.OwnTable, table, column string, proof driver.Ledger) *OwnLedger {
	on := func(statement string) string { return ledger.schema.In(fmt.Sprintf(statement, table, column)) }
	hold, committed := on(hold), on(ownCommitted)
	verbs := ledger.verbs()
	table = ledger.schema.In(table)
	o := ownTable{ledger, table, on(outcome)}
	verbs.Settle = o.settle
	verbs.Committed = func(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
		return ledger.find(ctx, ledger.db, committed, ids)
	}
	verbs.Check = func(ctx context.Context) error { return ledger.check(ctx, ledger.schema.In("bridge_ledger"), table) }
	reads := portable.With(&ledger.Ledger, verbs)
	return &OwnLedger{reads: o, OwnLedger: portable.NewOwnLedger(&reads, table, column, proof, portable.OwnVerbs{
		Canary: own.Canary,
		Rows: func(ids []uuid.UUID) (string, []any) {
			return hold, []any{array(ids), ledger.Identity().String(), keys(ids)}
		},
		Check: func(ctx context.Context) error {
			_, _, err := inspectOwn(ctx, ledger.db, own)
			return err
		},
	})}
}

// An ownTable settles on an own table.
type ownTable struct {
	ledger  *Ledger
	table   string
	outcome string
}

// settle waits for the lock of the ID, and reads the row. lock_timeout bounds the wait, as in
// Ledger.settle.
func (o ownTable) settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	milliseconds := portable.Wait(ctx, wait, time.Millisecond)
	tx, err := o.ledger.beginSettle(ctx)
	if err != nil {
		return driver.StillOpen, "", err
	}
	defer func() { _ = tx.Rollback() }()
	return o.settleIn(ctx, tx, id, milliseconds)
}

// settleIn is the rest of settle. The caller ends tx.
func (o ownTable) settleIn(ctx context.Context, tx *sqlx.Tx, id uuid.UUID, milliseconds int64) (driver.Outcome, driver.Instance, error) {
	if _, err := tx.ExecContext(ctx, await, strconv.FormatInt(key(id), 10), strconv.FormatInt(milliseconds, 10)); err != nil {
		return stillOpen(ctx, err)
	}
	var n struct {
		Own, Found int
		Standby    bool
		instance
	}
	err := tx.GetContext(ctx, &n, o.outcome, id.String(), o.ledger.Identity().String())
	switch {
	case err != nil:
		return stillOpen(ctx, err)
	case n.Standby:
		return driver.StillOpen, "", fmt.Errorf("%w: the server is in recovery or read-only", bridge.ErrNotPrimary)
	case n.Own != 1:
		return driver.StillOpen, "", portable.OtherLedger(o.ledger.Identity())
	case n.Found > 0:
		return o.ledger.committedOn(ctx, tx, n.instance)
	default:
		return driver.RolledBack, n.name(), nil
	}
}

// key returns the number of an ID's advisory lock: 64 bits of its 128. If two IDs have one key, or
// an application uses a lock of that number, a Record or a Settle may wait for an unrelated
// transaction. The judgement stays right: with the lock held, no other transaction that recorded
// the ID is open, and the outcome is read from the row.
func key(id uuid.UUID) int64 {
	return int64(binary.BigEndian.Uint64(id[:8]) ^ binary.BigEndian.Uint64(id[8:]))
}

// keys returns the keys of ids as the text of a bigint[].
func keys(ids []uuid.UUID) string {
	text := []byte{'{'}
	for i, id := range ids {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, key(id), 10)
	}
	return string(append(text, '}'))
}

// A proofLedger waits by the same locks, and puts its canaries into bridge_ledger.
type proofLedger struct {
	*OwnLedger
	ledger *Ledger
}

func (p proofLedger) Record(ctx context.Context, tx bridge.Tx, entries []driver.Entry) error {
	if err := p.ledger.Record(ctx, tx, entries); err != nil {
		return err
	}
	return p.OwnLedger.Record(ctx, tx, entries)
}

func (p proofLedger) Forget(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	return p.ledger.Forget(ctx, ids)
}

func (p proofLedger) Check(ctx context.Context) error { return p.ledger.Check(ctx) }
