package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// A Ledger is the ledger in one SQLite file. It implements driver.Ledger.
//
// Record inserts the IDs with one statement, whatever their number. If it fails, tx contains none
// of them. It takes the file's write lock, which tx keeps until it ends.
type Ledger struct {
	portable.Ledger
	fence
	db        *sqlx.DB
	committed string
	file      *file
}

var _ driver.Ledger = (*Ledger)(nil)

// Open reads the identity of the ledger in db. If the tables are missing or of an unusable
// version, the error wraps bridge.ErrNoSchema. The file must be in WAL mode. db stays the
// caller's.
func Open(ctx context.Context, db *sql.DB) (*Ledger, error) {
	l := &Ledger{db: sqlx.NewDb(db, "sqlite"), committed: fmt.Sprintf(committed, "bridge_ledger", "id"), file: new(file)}
	var err error
	if l.Ledger, err = portable.Open(ctx, l.db, l.verbs()); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Ledger) verbs() portable.Verbs {
	return portable.Verbs{
		Classify: func(err error, _ string) error { return classify(err) },
		Most:     portable.Chunk,
		Tick:     time.Second,
		Identity: l.readIdentity,
		Check:    l.check,
		Record:   l.record,
		Carry:    l.carry,
		Cancel:   l.cancel,
		Due:      l.due,
		Claim:    l.claim,
		Touch:    l.touchCarried,
		Instance: nameInstance,
		Committed: func(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
			return l.lookUp(ctx, l.db, ids)
		},
		Recent: func(ctx context.Context, ids []uuid.UUID, age time.Duration) ([]uuid.UUID, driver.Instance, error) {
			return l.find(ctx, l.db, recent, array(ids), l.Identity().String(), int64(age/time.Second))
		},
		Settle:      l.settle,
		Forget:      l.forget,
		Orphans:     l.orphans,
		Raise:       l.raise,
		Remove:      l.sweep,
		SweptBefore: l.sweptBefore,
	}
}

func (l *Ledger) record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) (int64, error) {
	return tx.Exec(ctx, record, array(ids), l.Identity().String())
}

// lookUp reads the rows of ids from the last commit. In WAL mode no writer blocks that.
func (l *Ledger) lookUp(ctx context.Context, q sqlx.QueryerContext, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
	return l.find(ctx, q, l.committed, array(ids), l.Identity().String())
}

func (l *Ledger) find(ctx context.Context, q sqlx.QueryerContext, statement string, args ...any) ([]uuid.UUID, driver.Instance, error) {
	var rows []struct {
		ID    uuid.NullUUID
		Dirty bool
		File  sql.NullString
	}
	if err := sqlx.SelectContext(ctx, q, &rows, statement, args...); err != nil {
		return nil, "", err
	}
	if len(rows) == 0 {
		return nil, "", portable.OtherLedger(l.Identity())
	}
	if rows[0].Dirty {
		return nil, "", fmt.Errorf("the connection reads uncommitted rows: set PRAGMA read_uncommitted to 0")
	}
	from, err := instanceOf(rows[0].File.String)
	if err != nil {
		return nil, "", err
	}
	var found []uuid.UUID
	for _, row := range rows {
		if row.ID.Valid {
			found = append(found, row.ID.UUID)
		}
	}
	return found, from, nil
}

// briefWait is how long forget, claim and touchCarried wait for other writers, in milliseconds.
const briefWait = 500

// forget leaves all rows if another writer is too slow.
func (l *Ledger) forget(ctx context.Context, ids []uuid.UUID) (left []uuid.UUID, err error) {
	busy, err := l.withBriefWait(ctx, func(conn *sqlx.Conn) error {
		_, err := conn.ExecContext(ctx, forget, array(ids))
		return err
	})
	if busy {
		left = ids
	}
	return left, err
}

// withBriefWait runs a statement that writes, on a connection that waits for other writers for
// briefWait. busy reports that this was too short; the statement has then changed nothing.
func (l *Ledger) withBriefWait(ctx context.Context, write func(conn *sqlx.Conn) error) (busy bool, err error) {
	err = portable.OnConnection(ctx, l.db, func(conn *sqlx.Conn) error {
		usual, err := waitFor(ctx, conn, briefWait)
		if err != nil {
			return err
		}
		if err = write(conn); isBusy(err) {
			busy, err = true, nil
		}
		if err != nil {
			return err
		}
		return setBusyTimeout(ctx, conn, usual)
	})
	return busy, err
}

// check reports whether the file can be written: a read-only file refuses the write of a settle,
// also while another connection writes.
func (l *Ledger) check(ctx context.Context) error {
	_, _, err := l.settle(ctx, uuid.New(), time.Millisecond)
	return err
}

func (l *Ledger) readIdentity(ctx context.Context) (uuid.UUID, error) {
	if err := l.file.leaveReplaced(ctx, l.db); err != nil {
		return uuid.Nil, err
	}
	identity, err := portable.ReadIdentity(ctx, l.db, schema.Name{})
	if err != nil {
		return uuid.Nil, err
	}
	var mode string
	if err := l.db.GetContext(ctx, &mode, `PRAGMA journal_mode`); err != nil {
		return uuid.Nil, err
	}
	if mode != "wal" {
		return uuid.Nil, fmt.Errorf("journal_mode is %q, must be wal: run PRAGMA journal_mode = wal once", mode)
	}
	return identity, nil
}

// array returns ids as a JSON array of their canonical texts.
func array(ids []uuid.UUID) string {
	text, err := json.Marshal(ids)
	if err != nil {
		panic(err) // texts can always be marshalled
	}
	return string(text)
}
