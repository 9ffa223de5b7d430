package ledgertest

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A keyedInbox is an inbox on one connection.
type keyedInbox struct {
	*inbox
	one  *sql.DB
	keys []string
}

func testInboxByKey(t *testing.T, i *inbox) {
	b := &keyedInbox{inbox: i, one: oneConnection(i.connect)}
	k := keyed{Harness: i.Harness, db: b.one, others: i.db, large: 2 * full,
		add: b.add, empty: b.empty, steps: b.steps, open: b.open}
	for _, table := range inboxTables {
		k.tables = append(k.tables, i.named(table))
	}
	k.run(t)
	b.empty(t)
}

var inboxTables = []string{"bridge_inbox", "bridge_inbox_pending", "bridge_mark", "bridge_kept"}

func (b *keyedInbox) empty(t *testing.T) {
	t.Helper()
	b.keys = nil
	for _, table := range inboxTables {
		_, err := b.one.ExecContext(t.Context(), b.named("DELETE FROM "+table))
		check(t, err, "empty "+table)
	}
}

// byKey is the consumer.
const byKey = "by key"

// add adds a row for each of n keys to each table.
func (b *keyedInbox) add(t *testing.T, n int) {
	t.Helper()
	ctx := t.Context()
	check(t, within(ctx, b.one, func(tx *sql.Tx) error {
		for range n {
			key := newName()
			b.keys = append(b.keys, key)
			if _, err := b.LockMark(ctx, b.in(tx), byKey, key); err != nil {
				return err
			}
			if _, err := b.Keep(ctx, b.in(tx), byKey, key, 1, []byte("message")); err != nil {
				return err
			}
			if _, err := b.Claim(ctx, b.in(tx), byKey, []string{key}); err != nil {
				return err
			}
			if _, err := b.AddPending(ctx, b.in(tx), byKey, pending(driver.Failed, key), time.Hour); err != nil {
				return err
			}
		}
		return nil
	}), "add rows")
}

// The first and the last of all keys, and two keys with committed rows that the open transactions
// lock.
const first, last, forgotten, taken = "!", "~", "forgotten", "taken"

// open begins transactions that hold a row before all others and one after them in each table, and
// have locked the rows of forgotten and taken.
func (b *keyedInbox) open(t *testing.T) []*sql.Tx {
	t.Helper()
	ctx := t.Context()
	claims, marks := begin(t, b.db), begin(t, b.db)
	if !b.Overlap {
		p, err := b.TakePending(ctx, b.in(claims), byKey, driver.Ready)
		check(t, err, "take")
		expectPending(t, p, pending(driver.Ready, taken))
	}
	_, err := b.Forget(ctx, b.in(claims), byKey, []string{forgotten}, -time.Minute)
	check(t, err, "forget")
	for _, key := range []string{first, last} {
		_, err := b.Claim(ctx, b.in(claims), byKey, []string{key})
		check(t, err, "claim")
		_, err = b.AddPending(ctx, b.in(claims), byKey, pending(driver.Failed, key), time.Hour)
		check(t, err, "add")
		_, err = b.LockMark(ctx, b.in(marks), byKey, key)
		check(t, err, "lock mark")
		check(t, b.SetMark(ctx, b.in(marks), byKey, key, "8"), "set mark")
		_, err = b.Keep(ctx, b.in(marks), byKey, key, 1, []byte("message"))
		check(t, err, "keep")
	}
	return []*sql.Tx{claims, marks}
}

func (b *keyedInbox) steps(t *testing.T) (steps []step) {
	t.Helper()
	ctx := t.Context()
	check(t, within(ctx, b.one, func(tx *sql.Tx) error {
		_, err := b.Claim(ctx, b.in(tx), byKey, []string{forgotten})
		if err == nil && !b.Overlap {
			_, err = b.AddPending(ctx, b.in(tx), byKey, pending(driver.Ready, taken), -time.Hour)
		}
		return err
	}), "insert rows for others to lock")

	ofAllRows := []string{"list", "count", "read claims", "list kept"} // of the consumer
	for _, v := range Verbs(b, byKey, pending(driver.Ready, newName())) {
		if slices.Contains(ofAllRows, v.Name) {
			continue
		}
		whole := 0
		if v.Name == "forget" {
			whole = 1 // for so many keys, to read this whole table may be right
		}
		steps = append(steps, step{v.Name, func(ctx context.Context) error {
			return within(ctx, b.one, func(tx *sql.Tx) error { return v.Do(ctx, b.in(tx)) })
		}, whole})
	}
	return steps
}
