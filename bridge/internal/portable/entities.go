package portable

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// EntityStatements are the statements of marks and kept messages. Their parameters come in the given
// order.
type EntityStatements struct {
	LockMark     string // consumer, name: mark; makes an empty one if there is none
	SetMark      string // mark, consumer, name
	Keep         string // consumer, entity, version, message
	CountKept    string // consumer, entity
	FirstKept    string // consumer, entity: version and message of one row
	Unkeep       string // consumer, entity, version
	KeptEntities string // consumer, limit: entity, mark, lowest version, number of messages, age in seconds
}

// EntityVerbs are the parts other than statements in which databases differ.
type EntityVerbs struct {
	// Bind puts arguments into a statement, or returns them beside it, as the driver takes them.
	// They are texts, numbers and a message.
	Bind func(statement string, args ...any) (string, []any)

	// LockMark and SetMark replace the statements of those names on a database where these do not
	// suffice. The texts have been checked.
	LockMark func(ctx context.Context, tx bridge.Tx, consumer, name string) (string, error)
	SetMark  func(ctx context.Context, tx bridge.Tx, consumer, name, mark string) (changed int64, err error)

	// Stored returns a message from the value that FirstKept returns; nil if the two are the same.
	Stored func([]byte) ([]byte, error)

	// IsDuplicate reports whether Keep found the version there; nil if Keep then inserts nothing
	// and returns no error.
	IsDuplicate func(error) bool
	// Classify adds the bridge's error, with the fix, to the database's. doing is the action.
	Classify func(err error, doing string) error
}

// The actions with a mark that errors name.
const (
	LockingMark = "lock mark"
	SettingMark = "set mark"
)

// Entities are the marks and kept messages of an inbox. With a method Transient it implements
// driver.Keeper.
type Entities struct {
	NoFence
	statements EntityStatements
	verbs      EntityVerbs
}

// NewEntities returns the Entities of a database with these statements.
func NewEntities(statements EntityStatements, verbs EntityVerbs) Entities {
	return Entities{statements: statements, verbs: verbs}
}

// LockMark locks the mark in tx, also if there is none yet.
func (e Entities) LockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (mark string, err error) {
	if err = CheckName(consumer, name); err == nil {
		mark, err = e.lockMark(ctx, tx, consumer, name)
	}
	return mark, e.wrap(LockingMark, err)
}

func (e Entities) lockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (mark string, err error) {
	if e.verbs.LockMark != nil {
		return e.verbs.LockMark(ctx, tx, consumer, name)
	}
	statement, args := e.verbs.Bind(e.statements.LockMark, consumer, name)
	found, err := queryRow(ctx, tx, statement, args, &mark)
	if err == nil && !found {
		err = errors.New("no row")
	}
	return mark, err
}

// SetMark changes the mark in tx, which has locked it.
func (e Entities) SetMark(ctx context.Context, tx bridge.Tx, consumer, name, mark string) error {
	err := errors.Join(CheckName(consumer, name), CheckMark(mark))
	if err == nil {
		err = oneRow(e.setMark(ctx, tx, consumer, name, mark))
	}
	return e.wrap(SettingMark, err)
}

func (e Entities) setMark(ctx context.Context, tx bridge.Tx, consumer, name, mark string) (changed int64, err error) {
	if e.verbs.SetMark != nil {
		return e.verbs.SetMark(ctx, tx, consumer, name, mark)
	}
	return e.exec(ctx, tx, e.statements.SetMark, mark, consumer, name)
}

// Keep stores a message in tx, which has locked the entity's mark.
func (e Entities) Keep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64, message []byte) (bool, error) {
	const doing = "keep message"
	if err := CheckName(consumer, entity); err != nil {
		return false, e.wrap(doing, err)
	}
	inserted, err := e.exec(ctx, tx, e.statements.Keep, consumer, entity, version, message)
	if e.verbs.IsDuplicate == nil {
		return inserted == 1, e.wrap(doing, err)
	}
	if e.verbs.IsDuplicate(err) {
		return false, nil
	}
	return err == nil, e.wrap(doing, err)
}

// CountKept counts the entity's stored messages.
func (e Entities) CountKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (n int, err error) {
	if err = CheckName(consumer, entity); err == nil {
		err = e.row(ctx, tx, e.statements.CountKept, []any{consumer, entity}, &n)
	}
	return n, e.wrap("count kept messages", err)
}

// FirstKept reads the entity's stored message with the lowest version.
func (e Entities) FirstKept(ctx context.Context, tx bridge.Tx, consumer, entity string) (version int64, message []byte, err error) {
	if err = CheckName(consumer, entity); err == nil {
		err = e.row(ctx, tx, e.statements.FirstKept, []any{consumer, entity}, &version, &message)
	}
	if err == nil && e.verbs.Stored != nil {
		message, err = e.verbs.Stored(message)
	}
	return version, message, e.wrap("read kept message", err)
}

// Unkeep deletes a stored message in tx, which has locked the entity's mark.
func (e Entities) Unkeep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64) error {
	err := CheckName(consumer, entity)
	if err == nil {
		_, err = e.exec(ctx, tx, e.statements.Unkeep, consumer, entity, version)
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
	statement, args := e.verbs.Bind(e.statements.KeptEntities, consumer, int64(limit))
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
	return fmt.Errorf("%s: %w", doing, e.verbs.Classify(err, doing))
}

func (e Entities) exec(ctx context.Context, tx bridge.Tx, statement string, args ...any) (changed int64, err error) {
	statement, args = e.verbs.Bind(statement, args...)
	return tx.Exec(ctx, statement, args...)
}

func (e Entities) row(ctx context.Context, tx bridge.Tx, statement string, args []any, into ...any) error {
	statement, args = e.verbs.Bind(statement, args...)
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
