package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// A Ledger is the ledger in one PostgreSQL database. It implements driver.Ledger.
//
// Record inserts the IDs with one statement, whatever their number. An error aborts tx, as always
// in PostgreSQL: the caller can only roll back, to the beginning or to an earlier savepoint.
type Ledger struct {
	portable.Ledger
	db     *sqlx.DB
	schema schema.Name
	flush  *portable.Flush
}

var _ driver.Ledger = (*Ledger)(nil)

// Open reads the identity of the ledger in db. If the tables are missing or of an unusable
// version, the error wraps bridge.ErrNoSchema. db stays the caller's.
func Open(ctx context.Context, db *sql.DB) (*Ledger, error) { return Schema("").Open(ctx, db) }

func (l *Ledger) verbs() portable.Verbs {
	return portable.Verbs{
		Classify: func(err error, _ string) error { return l.classify(err) },
		Most:     portable.Chunk,
		Tick:     time.Microsecond,
		Identity: func(ctx context.Context) (uuid.UUID, error) { return portable.ReadIdentity(ctx, l.db, l.schema) },
		Check:    func(ctx context.Context) error { return l.check(ctx, l.schema.In("bridge_ledger")) },
		Record:   l.record,
		Carry:    l.carry,
		Cancel:   l.cancel,
		Due:      l.due,
		Claim:    l.claim,
		Touch:    l.touchCarried,
		Instance: nameInstance,
		Committed: func(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
			return l.find(ctx, l.db, l.schema.In(committed), ids)
		},
		Settle: l.settle,
		Recent: func(ctx context.Context, ids []uuid.UUID, age time.Duration) ([]uuid.UUID, driver.Instance, error) {
			return l.find(ctx, l.db, l.schema.In(recent), ids, interval(age))
		},
		Forget:      l.forget,
		Orphans:     l.orphans,
		Raise:       l.raise,
		Remove:      l.sweep,
		SweptBefore: l.sweptBefore,
	}
}

// askPatience bounds the check whether the server is a standby, which needs a connection of the
// pool. In Record the caller may hold the only one.
const askPatience = time.Second

// classify also distinguishes a read-only transaction from a standby, where all are read-only.
func (l *Ledger) classify(err error) error {
	if sqlState(err) == readOnly {
		ctx, cancel := context.WithTimeout(context.Background(), askPatience)
		defer cancel()
		var standby bool
		if l.db.GetContext(ctx, &standby, inRecovery) == nil && standby {
			return fmt.Errorf("%w: the server is in recovery: %w", bridge.ErrNotPrimary, err)
		}
	}
	return classify(l.schema, err)
}

func (l *Ledger) record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) (int64, error) {
	if len(ids) == 1 {
		return tx.Exec(ctx, l.schema.In(recordOne), ids[0].String(), l.Identity().String())
	}
	return tx.Exec(ctx, l.schema.In(recordMany), array(ids), l.Identity().String())
}

// find reads the rows of ids with one statement in a snapshot of its own, which contains only
// committed rows at every isolation level.
func (l *Ledger) find(ctx context.Context, q sqlx.QueryerContext, statement string, ids []uuid.UUID, further ...any) ([]uuid.UUID, driver.Instance, error) {
	var rows []struct {
		ID uuid.NullUUID
		instance
	}
	if err := sqlx.SelectContext(ctx, q, &rows, statement, append([]any{array(ids), l.Identity().String()}, further...)...); err != nil {
		return nil, "", err
	}
	if len(rows) == 0 {
		return nil, "", portable.OtherLedger(l.Identity())
	}
	var found []uuid.UUID
	for _, row := range rows {
		if row.ID.Valid {
			found = append(found, row.ID.UUID)
		}
	}
	if len(found) > 0 {
		if err := l.replicate(ctx, rows[0].instance); err != nil {
			return nil, "", err
		}
	}
	return found, rows[0].name(), nil
}

// An instance is the result of nameServer.
type instance struct {
	Started int64 // microseconds since 1970
	Port    int
	Waits   bool // its commits wait for a standby
}

func (i instance) name() driver.Instance {
	return driver.Instance(fmt.Sprintf("the server on port %d that started at %s", i.Port, time.UnixMicro(i.Started).UTC().Format(time.RFC3339Nano)))
}

func nameInstance(ctx context.Context, tx bridge.Tx) (driver.Instance, error) {
	var i instance
	err := portable.QueryRow(ctx, tx, nameServer, nil, &i.Started, &i.Port, &i.Waits)
	return i.name(), err
}

// settle inserts the ID in a transaction of its own, and rolls back. The INSERT waits for a
// transaction that has inserted the ID. lock_timeout bounds the wait, in whole milliseconds; a
// shorter statement_timeout of the role bounds it too, and so does a deadline of ctx. If the
// process dies in between, the server rolls back when it sees the connection gone.
func (l *Ledger) settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	milliseconds := portable.Wait(ctx, wait, time.Millisecond) // never 0, which would wait for ever
	tx, err := l.beginSettle(ctx)
	if err != nil {
		return driver.StillOpen, "", err
	}
	defer func() { _ = tx.Rollback() }()
	return l.settleIn(ctx, tx, id, milliseconds)
}

// beginSettle begins the transaction of a settle. Above READ COMMITTED a row that is committed
// during the wait would be a serialization failure, and on an own table the second statement's
// snapshot could be older than the lock.
func (l *Ledger) beginSettle(ctx context.Context) (*sqlx.Tx, error) {
	tx, err := l.db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	return tx, nil
}

// settleIn is the rest of settle. The caller ends tx.
func (l *Ledger) settleIn(ctx context.Context, tx *sqlx.Tx, id uuid.UUID, milliseconds int64) (driver.Outcome, driver.Instance, error) {
	var n struct {
		Own, Inserted int
		instance
	}
	err := tx.GetContext(ctx, &n, l.schema.In(settle), id.String(), l.Identity().String(), strconv.FormatInt(milliseconds, 10))
	switch {
	case err != nil:
		return stillOpen(ctx, err)
	case n.Own != 1:
		return driver.StillOpen, "", portable.OtherLedger(l.Identity())
	case n.Inserted == 0:
		return l.committedOn(ctx, tx, n.instance)
	default:
		return driver.RolledBack, n.name(), nil
	}
}

// stillOpen returns the outcome of a settle that failed with err.
func stillOpen(ctx context.Context, err error) (driver.Outcome, driver.Instance, error) {
	if ctx.Err() == nil && waitEnded(err) {
		err = nil
	}
	return driver.StillOpen, "", err
}

const (
	forgetWait      = "100ms" // for a locked row, in a DELETE of many
	forgetAloneWait = "1ms"   // in a DELETE of one, only to see that the row is locked
)

// forget deletes the rows one by one if the DELETE of all has met a locked row.
func (l *Ledger) forget(ctx context.Context, ids []uuid.UUID) (left []uuid.UUID, err error) {
	locked, err := l.deleteWithin(ctx, forgetWait, ids)
	if err != nil || !locked {
		return nil, err
	}
	for _, id := range ids {
		alone := []uuid.UUID{id}
		if locked, err = l.deleteWithin(ctx, forgetAloneWait, alone); err != nil {
			return nil, err
		}
		if locked {
			left = append(left, id)
		}
	}
	return left, nil
}

// deleteWithin reports whether it has deleted nothing because a row is locked.
func (l *Ledger) deleteWithin(ctx context.Context, wait string, ids []uuid.UUID) (locked bool, err error) {
	_, err = l.db.ExecContext(ctx, l.schema.In(forget), array(ids), wait)
	if ctx.Err() == nil && sqlState(err) == lockNotAvailable {
		return true, nil
	}
	return false, err
}

// check returns nil if db is the primary, takes writes, keeps committed rows over a crash, and is
// where the rows of the tables are committed.
func (l *Ledger) check(ctx context.Context, names ...string) error {
	var server struct {
		Standby  bool
		ReadOnly bool `db:"read_only"`
	}
	if err := l.db.GetContext(ctx, &server, standby); err != nil {
		return err
	}
	switch {
	case server.Standby:
		return fmt.Errorf("%w: the server is in recovery", bridge.ErrNotPrimary)
	case server.ReadOnly:
		return fmt.Errorf("%w: default_transaction_read_only is on, for the server, the database, the login or the connection", bridge.ErrReadOnly)
	}
	if err := checkLogged(ctx, l.db, append([]string{l.schema.In("bridge_identity"), l.schema.In("bridge_watermark")}, names...)); err != nil {
		return err
	}
	// The locks here show nothing about rows from another primary.
	for _, table := range names {
		var name string
		err := l.db.GetContext(ctx, &name, subscription, table)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			continue
		case err != nil:
			return err
		}
		return fmt.Errorf("%w: subscription %s writes the commits of another primary to %s, and that primary's open transactions look rolled back here: "+
			"use the publisher, or take the table out of the publication", bridge.ErrNotPrimary, name, table)
	}
	return nil
}

// array returns ids as the text of a uuid[].
func array(ids []uuid.UUID) string {
	text := make([]byte, 0, len(ids)*37+2)
	text = append(text, '{')
	for i, id := range ids {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, id.String()...)
	}
	return string(append(text, '}'))
}

// numbers returns numbers as the text of an int[].
func numbers(all []int) string {
	text := []byte{'{'}
	for i, n := range all {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, int64(n), 10)
	}
	return string(append(text, '}'))
}
