package mysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/tables"
)

// Texts stand in the statements as hexadecimal digits, as the IDs do. Only a kept
// message, which may be large, is a parameter.
//
// The reads of kept messages lock nothing, not even the gap where there is none. At
// REPEATABLE READ they see the state of the transaction's first read, which is not
// older than its lock, as LockMark comes first.
const (
	makeMark = `INSERT INTO bridge_mark (consumer, name, mark) VALUES (UNHEX('%s'), UNHEX('%s'), '') ON DUPLICATE KEY UPDATE mark = mark`
	readMark = `SELECT mark FROM bridge_mark WHERE consumer = UNHEX('%s') AND name = UNHEX('%s') FOR UPDATE`
	setMark  = `UPDATE bridge_mark SET mark = UNHEX('%s'), changed_at = UTC_TIMESTAMP(6) WHERE consumer = UNHEX('%s') AND name = UNHEX('%s')`

	keep      = `INSERT INTO bridge_kept (consumer, entity, version, message) VALUES (UNHEX('%s'), UNHEX('%s'), %d, ?)`
	countKept = `SELECT count(*) FROM bridge_kept WHERE consumer = UNHEX('%s') AND entity = UNHEX('%s')`
	firstKept = `SELECT version, message FROM bridge_kept WHERE consumer = UNHEX('%s') AND entity = UNHEX('%s') ORDER BY version LIMIT 1`
	unkeep    = `DELETE FROM bridge_kept WHERE consumer = UNHEX('%s') AND entity = UNHEX('%s') AND version = %d`

	keptEntities = `SELECT k.entity, m.mark, k.lowest, k.kept, k.age
FROM (SELECT consumer, entity, min(version) AS lowest, count(*) AS kept, TIMESTAMPDIFF(SECOND, min(kept_at), UTC_TIMESTAMP(6)) AS age
FROM bridge_kept WHERE consumer = UNHEX('%s') GROUP BY consumer, entity) k
JOIN bridge_mark m ON m.consumer = k.consumer AND m.name = k.entity ORDER BY k.age DESC, k.entity LIMIT %d`
)

// LockMark locks the mark in tx. It waits for an open transaction that has locked it,
// for as long as tx's innodb_lock_wait_timeout allows (error 1205). Where several wait
// for one that has made it and rolls back, InnoDB may end all but one of them with a
// deadlock (1213): roll back and try again.
func (*Inbox) LockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (mark string, err error) {
	if err := tables.CheckName(consumer, name); err != nil {
		return "", wrap("lock mark", err)
	}
	if _, err := tx.ExecContext(ctx, fill(makeMark, consumer, name)); err != nil {
		return "", wrap("lock mark", err)
	}
	rows, err := tx.QueryContext(ctx, fill(readMark, consumer, name))
	if err == nil {
		_, err = tables.ReadRow(rows, &mark)
	}
	return mark, wrap("lock mark", err)
}

// SetMark changes the mark in tx, which has locked it.
func (*Inbox) SetMark(ctx context.Context, tx bridge.Tx, consumer, name, mark string) error {
	if err := errors.Join(tables.CheckName(consumer, name), tables.CheckMark(mark)); err != nil {
		return wrap("set mark", err)
	}
	return wrap("set mark", tables.OneRow(tx.ExecContext(ctx, fill(setMark, mark, consumer, name))))
}

// Keep stores a message in tx, which has locked the entity's mark.
func (*Inbox) Keep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64, message []byte) (bool, error) {
	if err := tables.CheckName(consumer, entity); err != nil {
		return false, wrap("keep message", err)
	}
	_, err := tx.ExecContext(ctx, fill(keep, consumer, entity, version), message)
	if number(err) == duplicateKey {
		return false, nil
	}
	return err == nil, wrap("keep message", err)
}

// CountKept counts the entity's stored messages.
func (*Inbox) CountKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (n int, err error) {
	if err := tables.CheckName(consumer, entity); err != nil {
		return 0, wrap("count kept messages", err)
	}
	rows, err := tx.QueryContext(ctx, fill(countKept, consumer, entity))
	if err == nil {
		_, err = tables.ReadRow(rows, &n)
	}
	return n, wrap("count kept messages", err)
}

// FirstKept reads the entity's stored message with the lowest version.
func (*Inbox) FirstKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (version int64, message []byte, err error) {
	if err := tables.CheckName(consumer, entity); err != nil {
		return 0, nil, wrap("read kept message", err)
	}
	rows, err := tx.QueryContext(ctx, fill(firstKept, consumer, entity))
	if err == nil {
		_, err = tables.ReadRow(rows, &version, &message)
	}
	return version, message, wrap("read kept message", err)
}

// Unkeep deletes a stored message in tx, which has locked the entity's mark.
func (*Inbox) Unkeep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64) error {
	if err := tables.CheckName(consumer, entity); err != nil {
		return wrap("delete kept message", err)
	}
	_, err := tx.ExecContext(ctx, fill(unkeep, consumer, entity, version))
	return wrap("delete kept message", err)
}

// KeptEntities reads all that is stored for consumer, but not the messages.
func (*Inbox) KeptEntities(ctx context.Context, tx bridge.Tx, consumer string, limit int) (all []driver.KeptEntity, err error) {
	if err := tables.CheckConsumer(consumer); err != nil {
		return nil, wrap("list kept messages", err)
	}
	var rows *sql.Rows
	rows, err = tx.QueryContext(ctx, fill(keptEntities, consumer, limit))
	if err == nil {
		all, err = tables.ReadKeptEntities(rows)
	}
	return all, wrap("list kept messages", err)
}

// fill fills in texts, as digits, and numbers.
func fill(statement string, values ...any) string {
	for i, value := range values {
		if text, ok := value.(string); ok {
			values[i] = hex.EncodeToString([]byte(text))
		}
	}
	return fmt.Sprintf(statement, values...)
}

// wrap says what was being done when err came about, if it did.
func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, classify(err))
}
