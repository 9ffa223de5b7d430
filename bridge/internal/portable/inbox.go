package portable

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// maxError is how many characters of an error are kept.
const maxError = 1000

// InboxStatements are the statements of an inbox. Their parameters come in the given order. A text
// is empty if the database's package replaces the method.
type InboxStatements struct {
	Unclaim    string // consumer, key
	Add        string // consumer, key, state, run, attempts, milliseconds until due, error, message
	Look       string // consumer, key, consumer, key: number of claims, state, run, attempts, since, error, message
	Change     string // state, run, attempts, milliseconds until due, error, message, consumer, key, run before
	Attach     string // message, consumer, key, run
	Remove     string // consumer, key, run
	RemoveBare string // consumer, key, run
	Take       string // consumer, state, limit: key, state, run, attempts, since, error, message
	Doubt      string // consumer
	List       string // consumer, state, key before, limit: key, state, run, attempts, since, error, 1 if there is a message
	Count      string // consumer: state, number of rows
	Claimed    string // consumer, key before, limit: key, age in milliseconds
	Forget     string // ForgetKeys keys, consumer, age in milliseconds
}

// InboxVerbs are the parts of an inbox other than statements in which databases differ.
type InboxVerbs struct {
	Schema  schema.Name // of the tables
	Packing Packing     // of consumers, keys, messages, states, runs and errors as arguments
	// Stored returns a message from the value that Look or Take returns; nil if the two are the same.
	Stored      func([]byte) ([]byte, error)
	IsDuplicate func(error) bool // recognises the error of Add if the key is pending already; nil if Add then inserts nothing
	Classify    func(error) error
}

// A Packing turns values into arguments.
type Packing struct {
	Name  func(s string) any    // a consumer or a key
	Bytes func(b []byte) []byte // a message; nil for nil
	Text  func(s string) string // a state or a run
	Error func(s string) string // an error's text, in any characters
}

// Unpacked leaves the values as they are.
var Unpacked = Packing{
	Name:  func(s string) any { return s },
	Bytes: func(b []byte) []byte { return b },
	Text:  func(s string) string { return s },
	Error: func(s string) string { return s },
}

// An Inbox is the portable part of a driver.Inbox.
type Inbox struct {
	db         *sql.DB
	statements InboxStatements
	verbs      InboxVerbs
}

// NewInbox returns the inbox in db.
func NewInbox(db *sql.DB, statements InboxStatements, verbs InboxVerbs) Inbox {
	return Inbox{db, statements, verbs}
}

// name returns a consumer or a key as an argument.
func (i Inbox) name(s string) any { return i.verbs.Packing.Name(s) }

// text returns a state or a run as an argument.
func (i Inbox) text(s string) any { return i.verbs.Packing.Text(s) }

// failure returns an error's text as an argument.
func (i Inbox) failure(s string) any { return i.verbs.Packing.Error(short(s)) }

// message returns a message as an argument; an empty one becomes NULL.
func (i Inbox) message(message []byte) any {
	if len(message) == 0 {
		return []byte(nil)
	}
	return i.verbs.Packing.Bytes(message)
}

// stored returns a message from the value that a statement has returned.
func (i Inbox) stored(value []byte) ([]byte, error) {
	if i.verbs.Stored == nil {
		return value, nil
	}
	return i.verbs.Stored(value)
}

// DB implements driver.Claims.
func (i Inbox) DB() *sql.DB { return i.db }

// execKey checks consumer and key, and calls exec for a statement on the key's row.
func (i Inbox) execKey(ctx context.Context, tx bridge.Tx, doing, consumer, key, statement string, args ...any) (int64, error) {
	if err := CheckKey(consumer, key); err != nil {
		return 0, fmt.Errorf("%s: %w", doing, err)
	}
	return i.exec(ctx, tx, doing, statement, args...)
}

func (i Inbox) exec(ctx context.Context, tx bridge.Tx, doing, statement string, args ...any) (int64, error) {
	n, err := tx.Exec(ctx, i.verbs.Schema.In(statement), args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", doing, i.verbs.Classify(err))
	}
	return n, nil
}

// AddPending implements driver.PendingMessages.
func (i Inbox) AddPending(ctx context.Context, tx bridge.Tx, consumer string, p driver.Pending, due time.Duration) (bool, error) {
	if err := CheckKey(consumer, p.Key); err != nil {
		return false, fmt.Errorf("add pending message: %w", err)
	}
	n, err := tx.Exec(ctx, i.verbs.Schema.In(i.statements.Add), i.name(consumer), i.name(p.Key), i.text(string(p.State)), i.text(p.Run),
		int64(p.Attempts), due.Milliseconds(), i.failure(p.Error), i.message(p.Message))
	if err != nil && i.verbs.IsDuplicate != nil && i.verbs.IsDuplicate(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("add pending message: %w", i.verbs.Classify(err))
	}
	return n == 1, nil
}

// LookUp implements driver.PendingMessages.
func (i Inbox) LookUp(ctx context.Context, tx bridge.Tx, consumer, key string) (claimed bool, p *driver.Pending, err error) {
	if err := CheckKey(consumer, key); err != nil {
		return false, nil, fmt.Errorf("look up pending message: %w", err)
	}
	c, k := i.name(consumer), i.name(key)
	var n int64
	var state, run, failure sql.NullString
	var attempts, since sql.NullInt64
	var message []byte
	err = i.query(ctx, tx, i.statements.Look, []any{c, k, c, k}, func(rows bridge.Rows) error {
		return rows.Scan(&n, &state, &run, &attempts, &since, &failure, &message)
	})
	if err == nil {
		message, err = i.stored(message)
	}
	if err != nil {
		return false, nil, fmt.Errorf("look up pending message: %w", err)
	}
	if state.Valid {
		p = &driver.Pending{Key: key, State: driver.State(state.String), Run: run.String, Attempts: int(attempts.Int64),
			Since: time.UnixMilli(since.Int64).UTC(), Error: failure.String, Message: message, Stored: len(message) > 0}
	}
	return n > 0, p, nil
}

// ChangePending implements driver.PendingMessages.
func (i Inbox) ChangePending(ctx context.Context, tx bridge.Tx, consumer, run string, p driver.Pending, due time.Duration) (bool, error) {
	n, err := i.execKey(ctx, tx, "change pending message", consumer, p.Key, i.statements.Change, i.text(string(p.State)), i.text(p.Run), int64(p.Attempts),
		due.Milliseconds(), i.failure(p.Error), i.message(p.Message), i.name(consumer), i.name(p.Key), i.text(run))
	return n == 1, err
}

// AttachMessage implements driver.PendingMessages.
func (i Inbox) AttachMessage(ctx context.Context, tx bridge.Tx, consumer, key, run string, message []byte) (bool, error) {
	n, err := i.execKey(ctx, tx, "keep pending message", consumer, key, i.statements.Attach, i.verbs.Packing.Bytes(message), i.name(consumer), i.name(key), i.text(run))
	return n == 1, err
}

// RemovePending implements driver.PendingMessages.
func (i Inbox) RemovePending(ctx context.Context, tx bridge.Tx, consumer, key, run string) (bool, error) {
	n, err := i.execKey(ctx, tx, "remove pending message", consumer, key, i.statements.Remove, i.name(consumer), i.name(key), i.text(run))
	return n == 1, err
}

// ReleasePending implements driver.PendingMessages. It deletes the row before the claim.
func (i Inbox) ReleasePending(ctx context.Context, tx bridge.Tx, consumer, key, run string) (bool, error) {
	n, err := i.execKey(ctx, tx, "remove pending message", consumer, key, i.statements.RemoveBare, i.name(consumer), i.name(key), i.text(run))
	if err != nil || n != 1 {
		return false, err
	}
	_, err = i.exec(ctx, tx, "unclaim key", i.statements.Unclaim, i.name(consumer), i.name(key))
	return true, err
}

// TakePending implements driver.PendingMessages.
func (i Inbox) TakePending(ctx context.Context, tx bridge.Tx, consumer string, state driver.State) (*driver.Pending, error) {
	if err := CheckConsumer(consumer); err != nil {
		return nil, fmt.Errorf("take pending message: %w", err)
	}
	taken, err := ReadPending(ctx, tx, i.verbs.Schema.In(i.statements.Take), i.name(consumer), i.text(string(state)), int64(1))
	if err != nil {
		return nil, wrap("take pending message", i.verbs.Classify(err))
	}
	if len(taken) == 0 {
		return nil, nil
	}
	if taken[0].Message, err = i.stored(taken[0].Message); err != nil {
		return nil, fmt.Errorf("take pending message: %w", err)
	}
	return &taken[0], nil
}

// DoubtOverdue implements driver.PendingMessages.
func (i Inbox) DoubtOverdue(ctx context.Context, tx bridge.Tx, consumer string) (int64, error) {
	if err := CheckConsumer(consumer); err != nil {
		return 0, fmt.Errorf("doubt pending messages: %w", err)
	}
	return i.exec(ctx, tx, "doubt pending messages", i.statements.Doubt, i.name(consumer))
}

// ListPending implements driver.PendingMessages.
func (i Inbox) ListPending(ctx context.Context, tx bridge.Tx, consumer string, state driver.State, after string, limit int) ([]driver.Pending, error) {
	if err := CheckConsumer(consumer); err != nil {
		return nil, fmt.Errorf("list pending messages: %w", err)
	}
	var found []driver.Pending
	err := i.query(ctx, tx, i.statements.List, []any{i.name(consumer), i.text(string(state)), i.name(after), int64(limit)}, func(rows bridge.Rows) error {
		var p driver.Pending
		var since, stored int64
		err := rows.Scan(&p.Key, &p.State, &p.Run, &p.Attempts, &since, &p.Error, &stored)
		p.Since, p.Stored = time.UnixMilli(since).UTC(), stored == 1
		found = append(found, p)
		return err
	})
	return found, wrap("list pending messages", err)
}

// CountPending implements driver.PendingMessages.
func (i Inbox) CountPending(ctx context.Context, tx bridge.Tx, consumer string) (map[driver.State]int64, error) {
	if err := CheckConsumer(consumer); err != nil {
		return nil, fmt.Errorf("count pending messages: %w", err)
	}
	counts := make(map[driver.State]int64)
	err := i.query(ctx, tx, i.statements.Count, []any{i.name(consumer)}, func(rows bridge.Rows) error {
		var state string
		var n int64
		err := rows.Scan(&state, &n)
		counts[driver.State(state)] = n
		return err
	})
	return counts, wrap("count pending messages", err)
}

// Claimed implements driver.Claims.
func (i Inbox) Claimed(ctx context.Context, tx bridge.Tx, consumer, after string, limit int) ([]driver.Claimed, error) {
	if err := CheckConsumer(consumer); err != nil {
		return nil, fmt.Errorf("read claims: %w", err)
	}
	var claims []driver.Claimed
	err := i.query(ctx, tx, i.statements.Claimed, []any{i.name(consumer), i.name(after), int64(limit)}, func(rows bridge.Rows) error {
		var c driver.Claimed
		var age int64
		err := rows.Scan(&c.Key, &age)
		c.Age = time.Duration(age) * time.Millisecond
		claims = append(claims, c)
		return err
	})
	return claims, wrap("read claims", err)
}

// ForgetKeys is how many keys InboxStatements.Forget has room for.
const ForgetKeys = 100

// Forget implements driver.Claims. A statement that is not full repeats its last key, so that there
// is only one text.
func (i Inbox) Forget(ctx context.Context, tx bridge.Tx, consumer string, keys []string, age time.Duration) (forgotten int64, err error) {
	if err := CheckKeys(consumer, keys); err != nil {
		return 0, fmt.Errorf("forget claims: %w", err)
	}
	for chunk := range slices.Chunk(keys, ForgetKeys) {
		args := make([]any, ForgetKeys, ForgetKeys+2)
		for n := range args {
			args[n] = i.name(chunk[min(n, len(chunk)-1)])
		}
		n, err := i.exec(ctx, tx, "forget claims", i.statements.Forget, append(args, i.name(consumer), age.Milliseconds())...)
		if forgotten += n; err != nil {
			return forgotten, err
		}
	}
	return forgotten, nil
}

// ReadPending reads pending messages with all their columns. It returns the database's errors.
func ReadPending(ctx context.Context, tx bridge.Tx, statement string, args ...any) (found []driver.Pending, err error) {
	err = query(ctx, tx, statement, args, func(rows bridge.Rows) error {
		var p driver.Pending
		var since int64
		err := rows.Scan(&p.Key, &p.State, &p.Run, &p.Attempts, &since, &p.Error, &p.Message)
		p.Since, p.Stored = time.UnixMilli(since).UTC(), len(p.Message) > 0
		found = append(found, p)
		return err
	})
	return found, err
}

// query calls scan for each row.
func (i Inbox) query(ctx context.Context, tx bridge.Tx, statement string, args []any, scan func(bridge.Rows) error) error {
	if err := query(ctx, tx, i.verbs.Schema.In(statement), args, scan); err != nil {
		return i.verbs.Classify(err)
	}
	return nil
}

func query(ctx context.Context, tx bridge.Tx, statement string, args []any, scan func(bridge.Rows) error) error {
	rows, err := tx.Query(ctx, statement, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func wrap(doing string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// short returns s without the characters that some database cannot store, cut off after maxError.
func short(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD")
	n := 0
	for i := range s {
		if n++; n > maxError {
			return s[:i]
		}
	}
	return s
}
