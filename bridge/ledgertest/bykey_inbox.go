package ledgertest

import (
	"context"
	"database/sql"
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
	k := keyed{Harness: i.Harness, db: b.one, others: i.db, tables: inboxTables, large: 2 * full,
		add: b.add, empty: b.empty, steps: b.steps, open: b.open}
	k.run(t)
	b.empty(t)
}

var inboxTables = []string{"bridge_inbox", "bridge_inbox_pending", "bridge_mark", "bridge_kept"}

func (b *keyedInbox) empty(t *testing.T) {
	t.Helper()
	b.keys = nil
	for _, table := range inboxTables {
		_, err := b.one.ExecContext(t.Context(), "DELETE FROM "+table)
		check(t, err, "empty "+table)
	}
}

// byKey is the consumer.
const byKey = "by key"

// add adds to each table a row for each of n keys.
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
			if _, err := b.Claim(ctx, b.in(tx), byKey, key); err != nil {
				return err
			}
			if _, err := b.AddPending(ctx, b.in(tx), byKey, pending(driver.Failed, key), time.Hour); err != nil {
				return err
			}
		}
		return nil
	}), "add rows")
}

// Keys that stand before and after all others, and two with committed rows that are the
// open transactions' all the same.
const first, last, forgotten, taken = "!", "~", "forgotten", "taken"

// open has a row before all others in each table and one after them, of the same
// consumer; one of the same key of another consumer; and rows that it has locked.
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
		_, err := b.Claim(ctx, b.in(claims), byKey, key)
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

func (b *keyedInbox) steps(t *testing.T) []step {
	t.Helper()
	ctx := t.Context()
	check(t, within(ctx, b.one, func(tx *sql.Tx) error {
		_, err := b.Claim(ctx, b.in(tx), byKey, forgotten)
		if err == nil && !b.Overlap {
			_, err = b.AddPending(ctx, b.in(tx), byKey, pending(driver.Ready, taken), -time.Hour)
		}
		return err
	}), "make rows that others will lock")

	key, other := newName(), newName()
	in := func(what string, do func(ctx context.Context, tx *sql.Tx) error) step {
		return step{what: what, do: func(ctx context.Context) error {
			return within(ctx, b.one, func(tx *sql.Tx) error { return do(ctx, tx) })
		}}
	}
	claim := func(consumer, key string, want bool) step {
		return in("claim", func(ctx context.Context, tx *sql.Tx) error {
			claimed, err := b.Claim(ctx, b.in(tx), consumer, key)
			return must("the claim", claimed, want, err)
		})
	}
	add := func(p driver.Pending) step {
		return in("add a pending message", func(ctx context.Context, tx *sql.Tx) error {
			added, err := b.AddPending(ctx, b.in(tx), byKey, p, time.Hour)
			return must("added", added, true, err)
		})
	}
	lookUp := func(key string, claimed, there bool) step {
		return in("look up", func(ctx context.Context, tx *sql.Tx) error {
			got, p, err := b.LookUp(ctx, b.in(tx), byKey, key)
			return must("claimed, pending", [2]bool{got, p != nil}, [2]bool{claimed, there}, err)
		})
	}
	bare := driver.Pending{Key: key, State: driver.Started, Run: "run 1", Attempts: 1}
	forget := in("forget claims", func(ctx context.Context, tx *sql.Tx) error {
		n, err := b.Forget(ctx, b.in(tx), byKey, []string{key, other}, -time.Minute)
		return must("the number of forgotten", n, 2, err)
	})
	forget.whole = 1 // it has room for so many keys that to read this table through may be right
	steps := []step{
		lookUp(key, false, false),
		claim(byKey, key, true),
		claim(byKey, key, false),
		claim("another", key, true),
		add(bare),
		lookUp(key, true, true),
		in("attach a message", func(ctx context.Context, tx *sql.Tx) error {
			attached, err := b.AttachMessage(ctx, b.in(tx), byKey, key, "run 1", []byte("message of "+key))
			return must("attached", attached, true, err)
		}),
		in("doubt what is overdue", func(ctx context.Context, tx *sql.Tx) error {
			n, err := b.DoubtOverdue(ctx, b.in(tx), byKey)
			return must("the number of doubtful", n, 0, err)
		}),
		in("change a pending message", func(ctx context.Context, tx *sql.Tx) error {
			changed, err := b.ChangePending(ctx, b.in(tx), byKey, "run 1", pending(driver.Ready, key), -time.Minute)
			return must("changed", changed, true, err)
		}),
		in("take a pending message", func(ctx context.Context, tx *sql.Tx) error {
			p, err := b.TakePending(ctx, b.in(tx), byKey, driver.Ready)
			if err != nil || p == nil {
				return must("something to take", p != nil, true, err)
			}
			return must("the key", p.Key, key, nil)
		}),
		in("remove a pending message", func(ctx context.Context, tx *sql.Tx) error {
			removed, err := b.RemovePending(ctx, b.in(tx), byKey, key, "run 1")
			return must("removed", removed, true, err)
		}),
		add(bare),
		in("remove a pending message that is bare", func(ctx context.Context, tx *sql.Tx) error {
			removed, err := b.RemoveBarePending(ctx, b.in(tx), byKey, key, "run 1")
			return must("removed", removed, true, err)
		}),
		in("unclaim", func(ctx context.Context, tx *sql.Tx) error { return b.Unclaim(ctx, b.in(tx), byKey, key) }),
		claim(byKey, key, true),
		claim(byKey, other, true),
		forget,
	}
	if len(b.keys) > 0 {
		steps = append(steps, in("remove what is pending in another state", func(ctx context.Context, tx *sql.Tx) error {
			removed, err := b.RemovePending(ctx, b.in(tx), byKey, b.keys[0], "another run")
			return must("removed", removed, false, err)
		}))
	}
	return append(steps, b.markSteps(key)...)
}

// markSteps are those of a mark and what is kept with it.
func (b *keyedInbox) markSteps(key string) []step {
	in := func(what string, do func(ctx context.Context, tx *sql.Tx) error) step {
		return step{what: what, do: func(ctx context.Context) error {
			return within(ctx, b.one, func(tx *sql.Tx) error {
				if _, err := b.LockMark(ctx, b.in(tx), byKey, key); err != nil {
					return err
				}
				return do(ctx, tx)
			})
		}}
	}
	return []step{
		in("lock a mark", func(context.Context, *sql.Tx) error { return nil }),
		in("set a mark", func(ctx context.Context, tx *sql.Tx) error { return b.SetMark(ctx, b.in(tx), byKey, key, "7") }),
		in("keep a message", func(ctx context.Context, tx *sql.Tx) error {
			fresh, err := b.Keep(ctx, b.in(tx), byKey, key, 5, []byte("message"))
			return must("new", fresh, true, err)
		}),
		in("count kept messages", func(ctx context.Context, tx *sql.Tx) error {
			n, err := b.CountKept(ctx, b.in(tx), byKey, key)
			return must("the count", n, 1, err)
		}),
		in("read the first kept message", func(ctx context.Context, tx *sql.Tx) error {
			version, _, err := b.FirstKept(ctx, b.in(tx), byKey, key)
			return must("the version", version, 5, err)
		}),
		in("delete a kept message", func(ctx context.Context, tx *sql.Tx) error { return b.Unkeep(ctx, b.in(tx), byKey, key, 5) }),
	}
}
