package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// A Ledger is the ledger in one MySQL or MariaDB database. It implements driver.Ledger.
//
// Record inserts IDs without messages with one statement, whatever their number. If it fails, tx
// contains none of them. After a deadlock tx has ended, and any further statement in it would
// commit by itself.
//
// max_allowed_packet of the server, by default 16 MiB on MariaDB and 64 MiB on MySQL, bounds a
// carried message, which is sent in base64: it must be somewhat smaller than three quarters of it.
type Ledger struct {
	portable.Ledger
	fence
	db     *sqlx.DB
	commit bool // end each statement with a COMMIT, since the connections do not
	column column
	flush  *portable.Flush
	start  *start
}

var _ driver.Ledger = (*Ledger)(nil)

// Open reads the identity of the ledger in db. If the tables are missing, of an unusable
// version or of an engine without transactions, the error wraps bridge.ErrNoSchema. db stays
// the caller's.
func Open(ctx context.Context, db *sql.DB) (*Ledger, error) {
	l := &Ledger{db: sqlx.NewDb(db, "mysql"), column: ledgerColumn, flush: portable.NewFlush(), start: new(start)}
	var err error
	if l.Ledger, err = portable.Open(ctx, l.db, l.verbs()); err != nil {
		return nil, err
	}
	if err := l.db.GetContext(ctx, &l.commit, `SELECT NOT @@SESSION.autocommit`); err != nil {
		return nil, fmt.Errorf("open ledger: read autocommit: %w", err)
	}
	return l, nil
}

func (l *Ledger) verbs() portable.Verbs {
	return portable.Verbs{
		Classify:    func(err error, _ string) error { return classify(err) },
		Most:        portable.Chunk,
		Tick:        time.Microsecond,
		Identity:    l.readIdentity,
		Check:       func(ctx context.Context) error { return errors.Join(l.checkVariables(ctx), l.checkReplica(ctx)) },
		Record:      l.record,
		Carry:       l.carry,
		Cancel:      l.cancel,
		Due:         l.due,
		Claim:       l.claim,
		Touch:       l.touch,
		Instance:    l.nameInstance,
		Committed:   l.committed,
		Settle:      l.settle,
		Recent:      l.recent,
		Forget:      l.forget,
		Orphans:     l.orphans,
		Raise:       l.raise,
		Remove:      l.sweep,
		SweptBefore: l.sweptBefore,
	}
}

func (l *Ledger) record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) (int64, error) {
	if len(ids) == 1 {
		return tx.Exec(ctx, l.statement(recordOne, digits(ids[0])))
	}
	return tx.Exec(ctx, l.statement(recordMany, array(ids)))
}

// committed reads the rows of ids with one statement at READ COMMITTED, at any isolation level of
// the connection.
func (l *Ledger) committed(ctx context.Context, ids []uuid.UUID) (found []uuid.UUID, from driver.Instance, err error) {
	var durable bool
	err = portable.OnConnection(ctx, l.db, func(conn *sqlx.Conn) error {
		return l.alone(ctx, conn, func() (err error) {
			found, from, durable, err = l.find(ctx, conn, l.statement(committed, array(ids)))
			return err
		})
	})
	if err == nil && len(found) > 0 && !durable {
		err = l.makeDurable(ctx, from)
	}
	return found, from, err
}

func (l *Ledger) recent(ctx context.Context, ids []uuid.UUID, age time.Duration) (found []uuid.UUID, from driver.Instance, err error) {
	err = portable.OnConnection(ctx, l.db, func(conn *sqlx.Conn) error {
		return l.alone(ctx, conn, func() (err error) {
			found, from, _, err = l.find(ctx, conn, l.timed(recent, ids, fmt.Sprint(age.Microseconds()), 0))
			return err
		})
	})
	return found, from, err
}

// find runs a statement that looks IDs up.
func (l *Ledger) find(ctx context.Context, q sqlx.QueryerContext, statement string) (found []uuid.UUID, from driver.Instance, durable bool, err error) {
	var rows []struct {
		ID     uuid.NullUUID
		Logged bool
		instance
	}
	if err := sqlx.SelectContext(ctx, q, &rows, statement); err != nil {
		return nil, "", false, err
	}
	if len(rows) == 0 {
		return nil, "", false, portable.OtherLedger(l.Identity())
	}
	for _, row := range rows {
		if row.ID.Valid {
			found = append(found, row.ID.UUID)
		}
	}
	return found, l.start.name(rows[0].instance), rows[0].Logged, nil
}

// forget deletes the rows that it can lock at once. It looks up the remaining rows only if it has
// deleted fewer than the given ones.
func (l *Ledger) forget(ctx context.Context, ids []uuid.UUID) (left []uuid.UUID, err error) {
	err = portable.OnConnection(ctx, l.db, func(conn *sqlx.Conn) error {
		var gone int
		err := l.alone(ctx, conn, func() (err error) {
			gone, err = portable.Changed(conn.ExecContext(ctx, l.statement(forget, array(ids))))
			return err
		})
		if err != nil || gone == len(ids) {
			return err
		}
		return l.alone(ctx, conn, func() error {
			return conn.SelectContext(ctx, &left, l.statement(present, array(ids)))
		})
	})
	return left, err
}

// alone runs one statement at READ COMMITTED, as a transaction of its own. The server ends the
// transaction with the statement, so a client that vanishes leaves no lock; in a longer transaction
// its locks would last for wait_timeout, eight hours by default. (They do if the DSN has turned
// autocommit off.) After an error the connection must not be used again, unless a time-out ended a
// wait.
func (l *Ledger) alone(ctx context.Context, conn *sqlx.Conn, run func() error) error {
	for again := deadlocks; ; again-- {
		if err := l.end(ctx, conn); err != nil {
			return err
		}
		// This applies to the next transaction only.
		if _, err := conn.ExecContext(ctx, `SET TRANSACTION ISOLATION LEVEL READ COMMITTED`); err != nil {
			return fmt.Errorf("set the isolation level: %w", err)
		}
		err := run()
		if errorNumber(err) == deadlock && again > 0 {
			continue
		}
		if ended := l.end(ctx, conn); err == nil {
			err = ended
		}
		return err
	}
}

// end commits the transaction that a statement has begun on a connection without autocommit.
func (l *Ledger) end(ctx context.Context, conn *sqlx.Conn) error {
	if !l.commit {
		return nil
	}
	if _, err := conn.ExecContext(ctx, `COMMIT`); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// idleLimit is how many seconds a transaction that keeps locks may be silent before the server ends
// it, with its connection.
const idleLimit = 60

// limitIdle makes the server end the connection after so many seconds without a statement, and
// returns the limit before.
func limitIdle(ctx context.Context, conn *sqlx.Conn, seconds int64) (usual int64, err error) {
	if err := conn.GetContext(ctx, &usual, `SELECT @@SESSION.wait_timeout`); err != nil {
		return 0, fmt.Errorf("read wait_timeout: %w", err)
	}
	return usual, setWaitTimeout(ctx, conn, seconds)
}

func setWaitTimeout(ctx context.Context, conn *sqlx.Conn, seconds int64) error {
	if _, err := conn.ExecContext(ctx, fmt.Sprintf(`SET SESSION wait_timeout = %d`, seconds)); err != nil {
		return fmt.Errorf("set wait_timeout: %w", err)
	}
	return nil
}

// keepingLocks is readCommitted for a transaction that keeps locks from one statement to the next:
// if its client vanishes in between, the locks last for idleLimit.
func keepingLocks(ctx context.Context, db *sqlx.DB, fn func(tx *sqlx.Tx) error) error {
	return portable.OnConnection(ctx, db, func(conn *sqlx.Conn) error {
		usual, err := limitIdle(ctx, conn, idleLimit)
		if err == nil {
			err = readCommitted(ctx, conn, fn)
		}
		if err == nil {
			err = setWaitTimeout(ctx, conn, usual)
		}
		return err
	})
}

// deadlocks is how often a transaction that the server ended for a deadlock is begun again.
const deadlocks = 3

// readCommitted runs fn in a transaction of its own at READ COMMITTED, and commits it. At that
// level none of the bridge's statements locks the gap of a missing ID, which would keep a sender
// from inserting there.
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
		if errorNumber(err) != deadlock || again == 0 {
			return err
		}
	}
}
