package portable

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// maxError is how many characters of an error are kept.
const maxError = 1000

// A Dialect holds the words in which the databases' statements for the inbox differ.
type Dialect struct {
	Schema  schema.Name // of the inbox's tables
	Bind    int         // sqlx's constant for the placeholders
	Key     string      // the column bridge_inbox.key, quoted
	Now     string      // the time, in whole milliseconds since 1970, constant within a statement
	Claimed string      // bridge_inbox.claimed_at in the same unit
	Limit   string      // the end of a SELECT of at most ? rows
	Bytes   bool        // columns for consumers and keys contain bytes
	Packing Packing     // for consumers, keys, messages, states, runs and errors; or empty

	// Seeking is the hint after a table's name that makes a statement by key search an index and
	// never read the table; empty if there is none.
	Seeking string
	// State is the expression for a state as a parameter; empty means text(?).
	State string

	Insert         string // precedes an INSERT, and
	OnConflict     string // follows it, so that a duplicate leaves the transaction usable
	Claiming       string // hint that keeps other transactions from deleting a claim until this one ends,
	Beside         string // hint for reading the claim's row, and
	Join           string // the join that reads it after the claim; all three are empty if a statement reads one snapshot
	Taking, Locked string // the hint after a table's name, or the end of a SELECT, that locks its rows and skips locked ones
	Overdue        string // the hint after the table's name in an UPDATE that finds rows by their due time; or empty
	Anew           string // see anew; or empty
	Forgetting     string // the start of a DELETE from bridge_inbox i, up to its last condition, of the keys in place of $keys; or empty

	IsDuplicate func(error) bool // recognises the INSERT's error, if OnConflict does not avoid it; or nil
	Classify    func(error) error
}

// An Inbox is the portable part of a driver.Inbox.
type Inbox struct {
	db                                                    *sql.DB
	d                                                     Dialect
	unclaim, add, look, change, keep, remove, removeEmpty string
	take, doubt, list, count, claimed, forget             string
}

var ofConsumer = regexp.MustCompile(`\bconsumer = (\$\d+)`)

// anew adds a condition after each condition on the consumer, whose parameter is ${1} in it. The
// added condition is always true. It keeps the server from reusing a plan made for another size of
// the table.
func anew(condition, statement string) string {
	if condition == "" {
		return statement
	}
	return ofConsumer.ReplaceAllString(statement, "${0} AND "+condition)
}

const (
	pendingColumns = `message_key, state, run, attempts, since_ms, error, message`
	// headColumns leave out the message: a page of large messages would fill the memory.
	headColumns = `message_key, state, run, attempts, since_ms, error, CASE WHEN message IS NULL THEN 0 ELSE 1 END AS has_message`
)

// NewInbox makes the statements of one database.
func NewInbox(d Dialect) Inbox {
	if d.Packing.Bytes == nil {
		d.Packing = unpacked
	}
	d.Packing = d.Packing.withError()
	words := strings.NewReplacer("$key", d.Key, "$now", d.Now, "$claimed", d.Claimed, "$limit", d.Limit,
		"$insert", d.Insert, "$conflict", d.OnConflict, "$claiming", d.Claiming, "$beside", d.Beside, "$join", cmp.Or(d.Join, "LEFT JOIN"),
		"$taking", d.Taking, "$overdue", d.Overdue, "$locked", d.Locked, "$seeking", d.Seeking, "$state", cmp.Or(d.State, "text(?)"), "$columns", pendingColumns, "$head", headColumns)
	text := func(s string) string {
		return d.Schema.In(strings.TrimSpace(anew(d.Anew, d.Packing.Unpack(sqlx.Rebind(d.Bind, words.Replace(s))))))
	}
	const pending = "bridge_inbox_pending"
	return Inbox{
		d:       d,
		unclaim: text(deleteFrom("bridge_inbox", d.Seeking) + ` WHERE consumer = bytes(?) AND $key = bytes(?)`),
		add: text(`$insert INSERT INTO bridge_inbox_pending (consumer, message_key, state, run, attempts, since_ms, due_ms, error, message)
VALUES (bytes(?), bytes(?), text(?), text(?), ?, $now, $now + ?, error(?), bytes(?)) $conflict`),
		look: text(`SELECT c.claimed, p.state, p.run, p.attempts, p.since_ms, p.error, p.message
FROM (SELECT count(*) AS claimed FROM bridge_inbox $claiming WHERE consumer = bytes(?) AND $key = bytes(?)) c
$join bridge_inbox_pending p $beside ON p.consumer = bytes(?) AND p.message_key = bytes(?)`),
		change: text(update(pending, d.Seeking, `state = text(?), run = text(?), attempts = ?, due_ms = $now + ?, error = error(?), message = COALESCE(bytes(?), message)`) +
			` WHERE consumer = bytes(?) AND message_key = bytes(?) AND run = text(?)`),
		keep: text(update(pending, d.Seeking, `message = bytes(?)`) +
			` WHERE consumer = bytes(?) AND message_key = bytes(?) AND run = text(?) AND message IS NULL`),
		remove:      text(deleteFrom(pending, d.Seeking) + ` WHERE consumer = bytes(?) AND message_key = bytes(?) AND run = text(?)`),
		removeEmpty: text(deleteFrom(pending, d.Seeking) + ` WHERE consumer = bytes(?) AND message_key = bytes(?) AND run = text(?) AND message IS NULL`),
		take: text(`SELECT $columns FROM bridge_inbox_pending $taking
WHERE consumer = bytes(?) AND state = $state AND due_ms <= $now AND message IS NOT NULL ORDER BY due_ms $limit $locked`),
		doubt: text(update(pending+" $overdue", "", `state = 'doubtful', due_ms = $now, error = 'started, no result since'`) +
			` WHERE consumer = bytes(?) AND state = 'started' AND due_ms < $now`),
		list: text(`SELECT $head FROM bridge_inbox_pending $seeking
WHERE consumer = bytes(?) AND state = $state AND message_key > bytes(?) ORDER BY message_key $limit`),
		count: text(`SELECT state, count(*) FROM bridge_inbox_pending $seeking WHERE consumer = bytes(?) GROUP BY state`),
		claimed: text(`SELECT $key, $now - $claimed AS age_ms FROM bridge_inbox $seeking
WHERE consumer = bytes(?) AND $key > bytes(?) ORDER BY $key $limit`),
		forget: text(strings.Replace(d.Forgetting, "$keys", strings.TrimSuffix(strings.Repeat("(bytes(?)), ", forgetKeys), ", "), 1) +
			` i.consumer = bytes(?) AND $claimed < $now - ?`),
	}
}

// deleteFrom begins a DELETE. A hint belongs to the FROM.
func deleteFrom(table, hint string) string {
	if hint == "" {
		return "DELETE FROM " + table
	}
	return "DELETE t FROM " + table + " t " + hint
}

// update begins an UPDATE in the same way.
func update(table, hint, set string) string {
	if hint == "" {
		return "UPDATE " + table + " SET " + set
	}
	return "UPDATE t SET " + set + " FROM " + table + " t " + hint
}

// name returns a consumer or a key as an argument.
func (i Inbox) name(s string) any {
	if i.d.Bytes {
		return i.d.Packing.Bytes([]byte(s))
	}
	return s
}

// text returns a state or a run as an argument.
func (i Inbox) text(s string) any { return i.d.Packing.Text(s) }

// message returns a message as an argument; an empty one becomes NULL.
func (i Inbox) message(message []byte) any {
	if len(message) == 0 {
		return []byte(nil)
	}
	return i.d.Packing.Bytes(message)
}

// On returns the inbox in db.
func (i Inbox) On(db *sql.DB) Inbox {
	i.db = db
	return i
}

// DB implements driver.Inbox.
func (i Inbox) DB() *sql.DB { return i.db }

// execKey checks consumer and key, and calls exec for a statement on the key's row.
func (i Inbox) execKey(ctx context.Context, tx bridge.Tx, doing, consumer, key, statement string, args ...any) (int64, error) {
	if err := CheckKey(consumer, key); err != nil {
		return 0, fmt.Errorf("%s: %w", doing, err)
	}
	return i.exec(ctx, tx, doing, statement, args...)
}

func (i Inbox) exec(ctx context.Context, tx bridge.Tx, doing, statement string, args ...any) (int64, error) {
	n, err := tx.Exec(ctx, statement, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", doing, i.d.Classify(err))
	}
	return n, nil
}

// Unclaim implements driver.Inbox.
func (i Inbox) Unclaim(ctx context.Context, tx bridge.Tx, consumer, key string) error {
	_, err := i.execKey(ctx, tx, "unclaim key", consumer, key, i.unclaim, i.name(consumer), i.name(key))
	return err
}

// AddPending implements driver.PendingMessages.
func (i Inbox) AddPending(ctx context.Context, tx bridge.Tx, consumer string, p driver.Pending, due time.Duration) (bool, error) {
	if err := CheckKey(consumer, p.Key); err != nil {
		return false, fmt.Errorf("add pending message: %w", err)
	}
	n, err := tx.Exec(ctx, i.add, i.name(consumer), i.name(p.Key), i.text(string(p.State)), i.text(p.Run),
		int64(p.Attempts), due.Milliseconds(), i.d.Packing.Error(short(p.Error)), i.message(p.Message))
	if err != nil && i.d.IsDuplicate != nil && i.d.IsDuplicate(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("add pending message: %w", i.d.Classify(err))
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
	err = i.query(ctx, tx, i.look, []any{c, k, c, k}, func(rows bridge.Rows) error {
		return rows.Scan(&n, &state, &run, &attempts, &since, &failure, &message)
	})
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
	n, err := i.execKey(ctx, tx, "change pending message", consumer, p.Key, i.change, i.text(string(p.State)), i.text(p.Run), int64(p.Attempts),
		due.Milliseconds(), i.d.Packing.Error(short(p.Error)), i.message(p.Message), i.name(consumer), i.name(p.Key), i.text(run))
	return n == 1, err
}

// AttachMessage implements driver.PendingMessages.
func (i Inbox) AttachMessage(ctx context.Context, tx bridge.Tx, consumer, key, run string, message []byte) (bool, error) {
	n, err := i.execKey(ctx, tx, "keep pending message", consumer, key, i.keep, i.d.Packing.Bytes(message), i.name(consumer), i.name(key), i.text(run))
	return n == 1, err
}

// RemovePending implements driver.PendingMessages.
func (i Inbox) RemovePending(ctx context.Context, tx bridge.Tx, consumer, key, run string) (bool, error) {
	n, err := i.execKey(ctx, tx, "remove pending message", consumer, key, i.remove, i.name(consumer), i.name(key), i.text(run))
	return n == 1, err
}

// RemoveBarePending implements driver.PendingMessages.
func (i Inbox) RemoveBarePending(ctx context.Context, tx bridge.Tx, consumer, key, run string) (bool, error) {
	n, err := i.execKey(ctx, tx, "remove pending message", consumer, key, i.removeEmpty, i.name(consumer), i.name(key), i.text(run))
	return n == 1, err
}

// TakePending implements driver.PendingMessages.
func (i Inbox) TakePending(ctx context.Context, tx bridge.Tx, consumer string, state driver.State) (*driver.Pending, error) {
	if err := CheckConsumer(consumer); err != nil {
		return nil, fmt.Errorf("take pending message: %w", err)
	}
	taken, err := ReadPending(ctx, tx, i.take, i.name(consumer), i.text(string(state)), int64(1))
	if err != nil {
		return nil, wrap("take pending message", i.d.Classify(err))
	}
	if len(taken) == 0 {
		return nil, nil
	}
	return &taken[0], nil
}

// DoubtOverdue implements driver.PendingMessages.
func (i Inbox) DoubtOverdue(ctx context.Context, tx bridge.Tx, consumer string) (int64, error) {
	if err := CheckConsumer(consumer); err != nil {
		return 0, fmt.Errorf("doubt pending messages: %w", err)
	}
	return i.exec(ctx, tx, "doubt pending messages", i.doubt, i.name(consumer))
}

// ListPending implements driver.PendingMessages.
func (i Inbox) ListPending(ctx context.Context, tx bridge.Tx, consumer string, state driver.State, after string, limit int) ([]driver.Pending, error) {
	if err := CheckConsumer(consumer); err != nil {
		return nil, fmt.Errorf("list pending messages: %w", err)
	}
	var found []driver.Pending
	err := i.query(ctx, tx, i.list, []any{i.name(consumer), i.text(string(state)), i.name(after), int64(limit)}, func(rows bridge.Rows) error {
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
	err := i.query(ctx, tx, i.count, []any{i.name(consumer)}, func(rows bridge.Rows) error {
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
	err := i.query(ctx, tx, i.claimed, []any{i.name(consumer), i.name(after), int64(limit)}, func(rows bridge.Rows) error {
		var c driver.Claimed
		var age int64
		err := rows.Scan(&c.Key, &age)
		c.Age = time.Duration(age) * time.Millisecond
		claims = append(claims, c)
		return err
	})
	return claims, wrap("read claims", err)
}

// forgetKeys is how many keys fit into one statement.
const forgetKeys = 100

// Forget implements driver.Claims. A statement that is not full repeats its last key, so that there
// is only one text.
func (i Inbox) Forget(ctx context.Context, tx bridge.Tx, consumer string, keys []string, age time.Duration) (forgotten int64, err error) {
	if err := CheckKeys(consumer, keys); err != nil {
		return 0, fmt.Errorf("forget claims: %w", err)
	}
	for chunk := range slices.Chunk(keys, forgetKeys) {
		args := make([]any, forgetKeys, forgetKeys+2)
		for n := range args {
			args[n] = i.name(chunk[min(n, len(chunk)-1)])
		}
		n, err := i.exec(ctx, tx, "forget claims", i.forget, append(args, i.name(consumer), age.Milliseconds())...)
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
	if err := query(ctx, tx, statement, args, scan); err != nil {
		return i.d.Classify(err)
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
