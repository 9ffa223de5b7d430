package tables

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// Entities are the marks and kept messages of an inbox, for databases that have ON
// CONFLICT and RETURNING. It implements driver.Keeper.
type Entities struct {
	bindType       int
	now, age, anew string
	classify       func(error) error
}

var _ driver.Keeper = Entities{}

// NewEntities takes sqlx's word for the placeholders, the database's expression for the
// time, and for the whole seconds since the lowest kept_at of a group, and Dialect.Anew.
func NewEntities(bindType int, now, age, anew string, classify func(error) error) Entities {
	return Entities{bindType, now, age, anew, classify}
}

func (e Entities) text(query string) string { return anew(e.anew, sqlx.Rebind(e.bindType, query)) }

// LockMark locks the row by an update that changes nothing. It is one statement, and
// the first of its transaction that reads: so at any isolation level the transaction
// sees what the one has left that had the lock before, or fails.
func (e Entities) LockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (mark string, err error) {
	if err := CheckName(consumer, name); err != nil {
		return "", e.wrap("lock mark", err)
	}
	found, err := e.row(ctx, tx, `INSERT INTO bridge_mark (consumer, name, mark) VALUES (?, ?, '')
ON CONFLICT (consumer, name) DO UPDATE SET mark = bridge_mark.mark RETURNING mark`, []any{consumer, name}, &mark)
	if err == nil && !found {
		err = errors.New("no row")
	}
	return mark, e.wrap("lock mark", err)
}

// SetMark changes the mark in tx, which has locked it.
func (e Entities) SetMark(ctx context.Context, tx bridge.Tx, consumer, name, mark string) error {
	if err := errors.Join(CheckName(consumer, name), CheckMark(mark)); err != nil {
		return e.wrap("set mark", err)
	}
	return e.wrap("set mark", OneRow(e.exec(ctx, tx,
		`UPDATE bridge_mark SET mark = ?, changed_at = `+e.now+` WHERE consumer = ? AND name = ?`, mark, consumer, name)))
}

// Keep stores a message in tx, which has locked the entity's mark.
func (e Entities) Keep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64, message []byte) (bool, error) {
	if err := CheckName(consumer, entity); err != nil {
		return false, e.wrap("keep message", err)
	}
	inserted, err := Changed(e.exec(ctx, tx, `INSERT INTO bridge_kept (consumer, entity, version, message) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		consumer, entity, version, message))
	return inserted == 1, e.wrap("keep message", err)
}

// CountKept counts the entity's stored messages.
func (e Entities) CountKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (n int, err error) {
	if err := CheckName(consumer, entity); err != nil {
		return 0, e.wrap("count kept messages", err)
	}
	_, err = e.row(ctx, tx, `SELECT count(*) FROM bridge_kept WHERE consumer = ? AND entity = ?`, []any{consumer, entity}, &n)
	return n, e.wrap("count kept messages", err)
}

// FirstKept reads the entity's stored message with the lowest version.
func (e Entities) FirstKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (version int64, message []byte, err error) {
	if err := CheckName(consumer, entity); err != nil {
		return 0, nil, e.wrap("read kept message", err)
	}
	_, err = e.row(ctx, tx, `SELECT version, message FROM bridge_kept WHERE consumer = ? AND entity = ? ORDER BY version LIMIT 1`,
		[]any{consumer, entity}, &version, &message)
	return version, message, e.wrap("read kept message", err)
}

// Unkeep deletes a stored message in tx, which has locked the entity's mark.
func (e Entities) Unkeep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64) error {
	if err := CheckName(consumer, entity); err != nil {
		return e.wrap("delete kept message", err)
	}
	_, err := e.exec(ctx, tx, `DELETE FROM bridge_kept WHERE consumer = ? AND entity = ? AND version = ?`, consumer, entity, version)
	return e.wrap("delete kept message", err)
}

// KeptEntities reads all that is stored for consumer, but not the messages.
func (e Entities) KeptEntities(ctx context.Context, tx bridge.Tx, consumer string, limit int) (all []driver.KeptEntity, err error) {
	if err := CheckConsumer(consumer); err != nil {
		return nil, e.wrap("list kept messages", err)
	}
	rows, err := tx.QueryContext(ctx, e.text(`SELECT k.entity, m.mark, k.lowest, k.kept, k.age
FROM (SELECT consumer, entity, min(version) AS lowest, count(*) AS kept, `+e.age+` AS age
FROM bridge_kept WHERE consumer = ? GROUP BY consumer, entity) k
JOIN bridge_mark m ON m.consumer = k.consumer AND m.name = k.entity ORDER BY k.age DESC, k.entity LIMIT ?`), consumer, limit)
	if err == nil {
		all, err = ReadKeptEntities(rows)
	}
	return all, e.wrap("list kept messages", err)
}

// wrap says what was being done when err came about, if it did.
func (e Entities) wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, e.classify(err))
}

func (e Entities) exec(ctx context.Context, tx bridge.Tx, query string, args ...any) (sql.Result, error) {
	return tx.ExecContext(ctx, e.text(query), args...)
}

func (e Entities) row(ctx context.Context, tx bridge.Tx, query string, args []any, into ...any) (bool, error) {
	rows, err := tx.QueryContext(ctx, e.text(query), args...)
	if err != nil {
		return false, err
	}
	return ReadRow(rows, into...)
}

// ReadRow reads the one row of a result, if there is one, and ends the result.
func ReadRow(rows *sql.Rows, into ...any) (found bool, err error) {
	defer rows.Close()
	for rows.Next() { // to the end, see ExpectRows
		if err := rows.Scan(into...); err != nil {
			return false, err
		}
		found = true
	}
	return found, rows.Err()
}

// ReadKeptEntities reads rows of entity, mark, lowest version, number of messages and
// age in seconds, and ends the result.
func ReadKeptEntities(rows *sql.Rows) ([]driver.KeptEntity, error) {
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

// OneRow returns err, or an error if the statement has not changed one row: the
// mark was not locked in this transaction.
func OneRow(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	changed, err := result.RowsAffected()
	if err == nil && changed != 1 {
		err = fmt.Errorf("%d rows changed, must be 1: the mark is not locked", changed)
	}
	return err
}
