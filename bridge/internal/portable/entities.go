package portable

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// Entities are the marks and kept messages of an inbox. With a method Transient it implements
// driver.Keeper.
type Entities struct {
	NoFence
	d EntityDialect
}

// NewEntities returns the Entities of a database with this dialect.
func NewEntities(d EntityDialect) Entities { return Entities{d: d} }

// An EntityDialect holds the differences between databases in marks and kept messages.
type EntityDialect struct {
	// Bind puts arguments into a statement, or returns them beside it, as the driver takes them.
	// They are texts, numbers and a message, in the order given for each statement.
	Bind func(statement string, args ...any) (string, []any)

	// LockMark implements driver.Marks, and SetMark executes its statement. The texts have been
	// checked.
	LockMark func(ctx context.Context, tx bridge.Tx, consumer, name string) (string, error)
	SetMark  func(ctx context.Context, tx bridge.Tx, consumer, name, mark string) (changed int64, err error)

	Keep         string // consumer, entity, version, message
	CountKept    string // consumer, entity
	FirstKept    string // consumer, entity: version and message of one row
	Unkeep       string // consumer, entity, version
	KeptEntities string // consumer, limit: entity, mark, lowest version, number of messages, age in seconds

	// IsDuplicate reports whether Keep found the version there; nil if Keep then inserts nothing
	// and returns no error.
	IsDuplicate func(error) bool
	// Classify adds the bridge's error, with the remedy, to the database's. doing is the action.
	Classify func(err error, doing string) error
}

// The actions with a mark that errors name.
const (
	LockingMark = "lock mark"
	SettingMark = "set mark"
)

// StandardEntities is the dialect of databases that have ON CONFLICT and RETURNING. Its parameters
// are the schema of the tables, sqlx's constant for the placeholders, the database's expression for
// the time, its expression for the whole seconds since the lowest kept_at of a group, and
// Dialect.Anew.
func StandardEntities(in schema.Name, bindType int, now, age, condition string, classify func(error) error) EntityDialect {
	bind := func(statement string, args ...any) (string, []any) {
		return in.In(anew(condition, sqlx.Rebind(bindType, statement))), args
	}
	return EntityDialect{
		Bind: bind,
		// An update that changes nothing locks the row. It is one statement, and the first of its
		// transaction that reads: so at any isolation level the transaction sees the mark left by
		// the lock's previous holder, or fails.
		LockMark: func(ctx context.Context, tx bridge.Tx, consumer, name string) (mark string, err error) {
			statement, args := bind(`INSERT INTO bridge_mark (consumer, name, mark) VALUES (?, ?, '')
ON CONFLICT (consumer, name) DO UPDATE SET mark = bridge_mark.mark RETURNING mark`, consumer, name)
			found, err := queryRow(ctx, tx, statement, args, &mark)
			if err == nil && !found {
				err = errors.New("no row")
			}
			return mark, err
		},
		SetMark: func(ctx context.Context, tx bridge.Tx, consumer, name, mark string) (changed int64, err error) {
			statement, args := bind(`UPDATE bridge_mark SET mark = ?, changed_at = `+now+` WHERE consumer = ? AND name = ?`, mark, consumer, name)
			return tx.Exec(ctx, statement, args...)
		},
		Keep:      `INSERT INTO bridge_kept (consumer, entity, version, message) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		CountKept: `SELECT count(*) FROM bridge_kept WHERE consumer = ? AND entity = ?`,
		FirstKept: `SELECT version, message FROM bridge_kept WHERE consumer = ? AND entity = ? ORDER BY version LIMIT 1`,
		Unkeep:    `DELETE FROM bridge_kept WHERE consumer = ? AND entity = ? AND version = ?`,
		KeptEntities: `SELECT k.entity, m.mark, k.lowest, k.kept, k.age
FROM (SELECT consumer, entity, min(version) AS lowest, count(*) AS kept, ` + age + ` AS age
FROM bridge_kept WHERE consumer = ? GROUP BY consumer, entity) k
JOIN bridge_mark m ON m.consumer = k.consumer AND m.name = k.entity ORDER BY k.age DESC, k.entity LIMIT ?`,
		Classify: func(err error, _ string) error { return classify(err) },
	}
}

// LockMark locks the mark in tx, also if there is none yet.
func (e Entities) LockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (mark string, err error) {
	if err = CheckName(consumer, name); err == nil {
		mark, err = e.d.LockMark(ctx, tx, consumer, name)
	}
	return mark, e.wrap(LockingMark, err)
}

// SetMark changes the mark in tx, which has locked it.
func (e Entities) SetMark(ctx context.Context, tx bridge.Tx, consumer, name, mark string) error {
	err := errors.Join(CheckName(consumer, name), CheckMark(mark))
	if err == nil {
		err = oneRow(e.d.SetMark(ctx, tx, consumer, name, mark))
	}
	return e.wrap(SettingMark, err)
}

// Keep stores a message in tx, which has locked the entity's mark.
func (e Entities) Keep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64, message []byte) (bool, error) {
	const doing = "keep message"
	if err := CheckName(consumer, entity); err != nil {
		return false, e.wrap(doing, err)
	}
	inserted, err := e.exec(ctx, tx, e.d.Keep, consumer, entity, version, message)
	if e.d.IsDuplicate == nil {
		return inserted == 1, e.wrap(doing, err)
	}
	if e.d.IsDuplicate(err) {
		return false, nil
	}
	return err == nil, e.wrap(doing, err)
}

// CountKept counts the entity's stored messages.
func (e Entities) CountKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (n int, err error) {
	if err = CheckName(consumer, entity); err == nil {
		err = e.row(ctx, tx, e.d.CountKept, []any{consumer, entity}, &n)
	}
	return n, e.wrap("count kept messages", err)
}

// FirstKept reads the entity's stored message with the lowest version.
func (e Entities) FirstKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (version int64, message []byte, err error) {
	if err = CheckName(consumer, entity); err == nil {
		err = e.row(ctx, tx, e.d.FirstKept, []any{consumer, entity}, &version, &message)
	}
	return version, message, e.wrap("read kept message", err)
}

// Unkeep deletes a stored message in tx, which has locked the entity's mark.
func (e Entities) Unkeep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64) error {
	err := CheckName(consumer, entity)
	if err == nil {
		_, err = e.exec(ctx, tx, e.d.Unkeep, consumer, entity, version)
	}
	return e.wrap("delete kept message", err)
}

// KeptEntities reads everything stored for consumer except the messages.
func (e Entities) KeptEntities(ctx context.Context, tx bridge.Tx, consumer string, limit int) (all []driver.KeptEntity, err error) {
	if err = CheckConsumer(consumer); err == nil {
		all, err = e.keptEntities(ctx, tx, consumer, limit)
	}
	return all, e.wrap("list kept messages", err)
}

func (e Entities) keptEntities(ctx context.Context, tx bridge.Tx, consumer string, limit int) ([]driver.KeptEntity, error) {
	statement, args := e.d.Bind(e.d.KeptEntities, consumer, int64(limit))
	rows, err := tx.Query(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []driver.KeptEntity
	for rows.Next() {
		var one driver.KeptEntity
		var age int64
		if err := rows.Scan(&one.Entity, &one.Mark, &one.First, &one.Kept, &age); err != nil {
			return nil, err
		}
		one.Age = time.Duration(max(0, age)) * time.Second
		all = append(all, one)
	}
	return all, rows.Err()
}

// wrap adds to err, unless it is nil, the action that failed.
func (e Entities) wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, e.d.Classify(err, doing))
}

func (e Entities) exec(ctx context.Context, tx bridge.Tx, statement string, args ...any) (changed int64, err error) {
	statement, args = e.d.Bind(statement, args...)
	return tx.Exec(ctx, statement, args...)
}

func (e Entities) row(ctx context.Context, tx bridge.Tx, statement string, args []any, into ...any) error {
	statement, args = e.d.Bind(statement, args...)
	_, err := queryRow(ctx, tx, statement, args, into...)
	return err
}

// QueryRow reads the one row of a query in tx.
func QueryRow(ctx context.Context, tx bridge.Tx, statement string, args []any, into ...any) error {
	found, err := queryRow(ctx, tx, statement, args, into...)
	if err == nil && !found {
		err = sql.ErrNoRows
	}
	return err
}

func queryRow(ctx context.Context, tx bridge.Tx, statement string, args []any, into ...any) (found bool, err error) {
	rows, err := tx.Query(ctx, statement, args...)
	if err != nil {
		return false, err
	}
	return ReadRow(rows, into...)
}

// ReadRow reads the one row of a result, if there is one, and closes the result. It reads to the
// end: if rows are closed earlier, go-mssqldb may send an attention, which would reach the caller's
// transaction.
func ReadRow(rows bridge.Rows, into ...any) (found bool, err error) {
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return false, err
		}
		found = true
	}
	return found, rows.Err()
}

// oneRow returns err, or an error if the statement has not changed one row: then this transaction
// had not locked the mark.
func oneRow(changed int64, err error) error {
	if err == nil && changed != 1 {
		err = fmt.Errorf("%d rows changed, must be 1: the mark is not locked", changed)
	}
	return err
}
