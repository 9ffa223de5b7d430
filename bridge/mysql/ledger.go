package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/mysqlserver"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// A Ledger is the ledger in one MySQL or MariaDB database. It implements
// driver.Ledger.
type Ledger struct {
	tables.Ledger
	db       *sqlx.DB
	identity uuid.UUID
	column   column
}

var _ driver.Ledger = (*Ledger)(nil)

// Open reads the identity of the ledger in db. It returns an error that wraps
// bridge.ErrNoSchema if the tables are not there, of an unusable version or of an
// engine without transactions. db stays the caller's.
func Open(ctx context.Context, db *sql.DB) (*Ledger, error) {
	l, err := open(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return l, nil
}

func open(ctx context.Context, db *sql.DB) (*Ledger, error) {
	l := &Ledger{db: sqlx.NewDb(db, "mysql"), column: ledgerColumn}
	identity, err := l.readIdentity(ctx)
	if err != nil {
		return nil, err
	}
	l.identity = identity
	l.Ledger = tables.NewLedger(l.db, identity, l.verbs())
	return l, nil
}

func (l *Ledger) verbs() tables.Verbs {
	return tables.Verbs{
		Classify:    func(err error, _ string) error { return classify(err) },
		Most:        tables.Chunk,
		Tick:        time.Microsecond,
		Forget:      l.forget,
		Shelf:       l.openShelf,
		CountParked: l.countParked,
		Orphans:     l.orphans,
		Raise:       l.raise,
		Remove:      l.sweep,
		SweptBefore: l.sweptBefore,
		Watched:     l.watched(),
	}
}

// Record inserts the IDs in tx with one statement, whatever their number. If it
// fails, tx holds none of them; after a deadlock tx has ended, and every statement
// that the caller might still send in it would commit by itself.
func (l *Ledger) Record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error {
	if len(ids) == 0 {
		return nil
	}
	statement, asked := recordMany, array(ids)
	if len(ids) == 1 {
		statement, asked = recordOne, digits(ids[0])
	}
	changed, err := tx.Exec(ctx, l.statement(statement, asked))
	if err == nil {
		err = tables.ExpectChanged(changed, len(ids), l.identity)
	}
	if err != nil {
		return fmt.Errorf("record %d IDs: %w", len(ids), classify(err))
	}
	return nil
}

// Committed reads the rows of ids with one statement in a transaction of its own at
// READ COMMITTED, whatever the connection's isolation level is.
func (l *Ledger) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var found []uuid.UUID
	err := readCommitted(ctx, l.db, func(tx *sqlx.Tx) (err error) {
		found, err = l.find(ctx, tx, ids)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up %d IDs: %w", len(ids), classify(err))
	}
	return found, nil
}

func (l *Ledger) find(ctx context.Context, tx *sqlx.Tx, ids []uuid.UUID) ([]uuid.UUID, error) {
	var rows []uuid.NullUUID
	if err := tx.SelectContext(ctx, &rows, l.statement(committed, array(ids))); err != nil {
		return nil, err
	}
	return tables.Found(rows, l.identity)
}

func (l *Ledger) forget(ctx context.Context, ids []uuid.UUID) error {
	return readCommitted(ctx, l.db, func(tx *sqlx.Tx) error {
		_, err := tx.ExecContext(ctx, l.statement(forget, array(ids)))
		return err
	})
}

// deadlocks is how often a transaction that the server has ended for a deadlock is
// begun again.
const deadlocks = 3

// readCommitted runs fn in a transaction of its own at READ COMMITTED, and commits
// it. At that level no statement of ours locks the gap in which a missing ID would
// stand, and so keeps a sender from inserting there.
func readCommitted(ctx context.Context, db interface {
	BeginTxx(context.Context, *sql.TxOptions) (*sqlx.Tx, error)
}, fn func(tx *sqlx.Tx) error) error {
	for again := deadlocks; ; again-- {
		tx, err := db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		if err = fn(tx); err == nil {
			err = tx.Commit()
		} else {
			_ = tx.Rollback()
		}
		if mysqlserver.Number(err) != deadlock || again == 0 {
			return err
		}
	}
}
