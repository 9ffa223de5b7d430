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
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// A read cannot wait for an insert here, and an insert of our own is out of the
// question. So Record takes a lock for each ID that lasts as long as the sender's
// transaction, an advisory one, and Settle waits for that and then reads with a
// snapshot taken after the wait. PostgreSQL releases a transaction's locks only
// after its outcome is visible.
//
// Their plans are not kept, as those of the ledger's statements.
//
//	%[1]s the table, %[2]s its column
const (
	hold = `WITH own AS MATERIALIZED (SELECT FROM bridge_identity WHERE identity = $2::text::uuid),
held AS MATERIALIZED (SELECT pg_advisory_xact_lock(key) FROM own, unnest($3::text::bigint[]) AS keys(key))
SELECT (SELECT count(*) FROM held), (SELECT count(*) FROM unnest($1::text::uuid[]) AS ids(id) JOIN %[1]s l ON l.%[2]s = ids.id
	WHERE CASE WHEN $1::text IS NULL THEN ` + neverKept + ` ELSE true END)`

	// The lock is taken after the time-out is set. It is a shared one, so that many
	// may settle one ID.
	await = `WITH patience AS MATERIALIZED (
	SELECT set_config('lock_timeout', $2::text, true), set_config('idle_in_transaction_session_timeout', '10s', true)
)
SELECT pg_advisory_xact_lock_shared($1::text::bigint) FROM patience`

	// A standby has advisory locks of its own, which no sender holds.
	outcome = `SELECT (SELECT count(*) FROM bridge_identity WHERE identity = $2::text::uuid) AS own,
	(SELECT count(*) FROM %[1]s l WHERE l.%[2]s = $1::text::uuid
		AND CASE WHEN $1::text IS NULL THEN ` + neverKept + ` ELSE true END) AS found,
	pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS standby`

	ownCommitted = `SELECT l.%[2]s FROM bridge_identity i
LEFT JOIN (unnest($1::text::uuid[]) AS ids(id) JOIN %[1]s l ON l.%[2]s = ids.id)
ON CASE WHEN $1::text IS NULL THEN ` + neverKept + ` ELSE true END WHERE i.identity = $2::text::uuid`
)

// An OwnLedger is a ledger that reads another table than bridge_ledger, and leaves it as
// it is. It implements driver.Ledger.
type OwnLedger struct {
	tables.OwnLedger
	ledger                   *Ledger
	own                      bridge.OwnTable
	table                    string // quoted, with its schema
	hold, outcome, committed string
}

var _ driver.Ledger = (*OwnLedger)(nil)

// OpenOwnTable opens the ledger of db on a table of the application's own. The
// column must be of type uuid, with a unique index on it alone, in a logged table
// that the login may read without row-level security.
//
// Record takes an advisory lock per ID. The server has room for
// max_locks_per_transaction times its connections, all transactions together;
// without room Record fails, and with it the transaction.
func OpenOwnTable(ctx context.Context, db *sql.DB, own bridge.OwnTable) (*OwnLedger, error) {
	ledger, err := Open(ctx, db)
	if err != nil {
		return nil, err
	}
	table, column, err := inspectOwn(ctx, ledger.db, own)
	if err != nil {
		return nil, fmt.Errorf("open own table: %w", err)
	}
	return newOwnLedger(ledger, own, table, column), nil
}

// newOwnLedger takes the names quoted.
func newOwnLedger(ledger *Ledger, own bridge.OwnTable, table, column string) *OwnLedger {
	o := &OwnLedger{
		ledger:    ledger,
		own:       own,
		table:     table,
		hold:      fmt.Sprintf(hold, table, column),
		outcome:   fmt.Sprintf(outcome, table, column),
		committed: fmt.Sprintf(ownCommitted, table, column),
	}
	watched := tables.Watched{DB: ledger.db, Table: table, Settle: o.settle, Settles: settles, Classify: classify}
	o.OwnLedger = tables.NewOwnLedger(ledger, watched, tables.OwnIdentity(ledger.identity, table, column), nil)
	return o
}

// Record shows that tx has a row for each of ids, and takes their locks, which tx
// has until it ends. It changes no data.
func (o *OwnLedger) Record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error {
	if len(ids) == 0 {
		return nil
	}
	err := tables.ExpectRows(ctx, tx, o.ledger.identity, len(ids), o.hold, array(ids), o.ledger.identity.String(), keys(ids))
	if err != nil {
		return fmt.Errorf("record %d IDs in %s: %w", len(ids), o.own.Table, classify(err))
	}
	return nil
}

// Committed reads the rows of ids with one statement in a snapshot of its own.
func (o *OwnLedger) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	return o.ledger.lookUp(ctx, o.committed, ids)
}

// Settle waits for the lock of the ID, and reads the row. lock_timeout bounds the
// wait, as in Ledger.Settle.
func (o *OwnLedger) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, error) {
	return o.settle(ctx, id, wait, tables.Unwatched)
}

func (o *OwnLedger) settle(ctx context.Context, id uuid.UUID, wait time.Duration, began func(sqlx.QueryerContext) error) (driver.Outcome, error) {
	milliseconds := tables.Wait(ctx, wait, time.Millisecond)
	// At READ COMMITTED each statement has a snapshot of its own: that of the second
	// one must not be older than the lock.
	tx, err := o.ledger.db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return driver.StillOpen, fmt.Errorf("settle %s: begin: %w", id, classify(err))
	}
	defer func() { _ = tx.Rollback() }()
	if err := began(tx); err != nil {
		return stillOpen(ctx, id, err)
	}
	if _, err := tx.ExecContext(ctx, await, strconv.FormatInt(key(id), 10), strconv.FormatInt(milliseconds, 10)); err != nil {
		return stillOpen(ctx, id, err)
	}
	var n struct {
		Own, Found int
		Standby    bool
	}
	err = tx.GetContext(ctx, &n, o.outcome, id.String(), o.ledger.identity.String())
	switch {
	case err != nil:
		return stillOpen(ctx, id, err)
	case n.Standby:
		return driver.StillOpen, fmt.Errorf("settle %s: %w: it is in recovery or read-only", id, bridge.ErrNotPrimary)
	case n.Own != 1:
		return driver.StillOpen, fmt.Errorf("settle %s: %w", id, tables.OtherLedger(o.ledger.identity))
	case n.Found > 0:
		return driver.Committed, nil
	default:
		return driver.RolledBack, nil
	}
}

// Check is Ledger's, and looks at the table again.
func (o *OwnLedger) Check(ctx context.Context) error {
	if err := o.Ledger.Check(ctx); err != nil {
		return err
	}
	if _, _, err := inspectOwn(ctx, o.ledger.db, o.own); err != nil {
		return fmt.Errorf("check own table: %w", err)
	}
	return wrap("check own table", o.ledger.checkWritten(ctx, o.table))
}

// key is the number of an ID's advisory lock: 64 bits of its 128. Two IDs with one
// key, or an application with a lock of that number, can make a Record or a Settle
// wait for a transaction that is not its own. They can make none judge wrongly: who
// has the lock knows that no other transaction which recorded the ID is open, and
// the outcome is read from the row.
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

// ProofLedger returns a ledger that waits by the same locks, on bridge_ledger.
func (o *OwnLedger) ProofLedger() driver.Ledger {
	onLedger := bridge.OwnTable{Table: "bridge_ledger", Column: "id"}
	return &proofLedger{OwnLedger: newOwnLedger(o.ledger, onLedger, onLedger.Table, onLedger.Column)}
}

// A proofLedger puts its canaries into bridge_ledger itself.
type proofLedger struct{ *OwnLedger }

func (p *proofLedger) Record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error {
	if err := p.ledger.Record(ctx, tx, ids); err != nil {
		return err
	}
	return p.OwnLedger.Record(ctx, tx, ids)
}

func (p *proofLedger) Forget(ctx context.Context, ids []uuid.UUID) error {
	return p.ledger.Forget(ctx, ids)
}

// ProofLedger is nil: this one is proven itself.
func (*proofLedger) ProofLedger() driver.Ledger { return nil }

func (p *proofLedger) Check(ctx context.Context) error { return p.ledger.Check(ctx) }
