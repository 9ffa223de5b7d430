package ledgertest

import (
	"context"
	"database/sql"
	"strconv"
	"sync"
	"testing"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// runEntities tests every promise of driver.Keeper on the inbox of h. The inbox's tables are in db.
func runEntities(t *testing.T, h Harness, db *sql.DB, inbox driver.Inbox) {
	run(t, h, &entities{h, inbox, db}, []test[*entities]{
		{"a mark is empty until it is set, and then has its last value", testMark},
		{"marks of consumers and names that differ in case, in spaces or in accents are different", testMarkNames},
		{"a wait for the lock of a mark, new or not, returns the mark that the other transaction left", testMarkWaits},
		{"kept messages are returned by their versions, byte by byte", testKeep},
		{"a version is kept once", testKeepTwice},
		{"entities with kept messages are listed, the longest waiting first", testKeptEntities},
	}, []test[*entities]{
		{"a rollback undoes a mark and a lock", testMarkRollback},
		{"a set does not create a mark that is not locked", testMarkNotLocked},
		{"concurrent counts on one new mark are all kept", testMarkCounts},

		{"a rollback undoes keeping and deleting", testKeepRollback},
		{"messages are kept for one consumer and one entity", testKeepScope},
		{"after a wait for the lock of a mark, a transaction sees the messages that the other has kept", testKeepUnderLock},
	}, func(*testing.T) {})
}

type entities struct {
	Harness
	driver.Keeper
	db *sql.DB
}

func newName() string { return newID().String() }

// mark locks a mark in a transaction of its own, sets it unless to is empty, and commits. It
// returns the mark before.
func (e *entities) mark(t *testing.T, consumer, name, to string) string {
	t.Helper()
	tx := begin(t, e.db)
	was, err := e.LockMark(t.Context(), e.in(tx), consumer, name)
	check(t, err, "lock mark")
	if to != "" {
		check(t, e.SetMark(t.Context(), e.in(tx), consumer, name, to), "set mark")
	}
	check(t, tx.Commit(), "commit")
	return was
}

func expectMark(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("the mark is %q, must be %q", got, want)
	}
}

func testMark(t *testing.T, e *entities) {
	name := newName()
	expectMark(t, e.mark(t, "a", name, ""), "")
	expectMark(t, e.mark(t, "a", name, "7"), "")
	expectMark(t, e.mark(t, "a", name, "ä 8"), "7")
	expectMark(t, e.mark(t, "a", name, ""), "ä 8")

	tx := begin(t, e.db)
	for _, to := range []string{"9", "10"} { // also within one transaction
		_, err := e.LockMark(t.Context(), e.in(tx), "a", name)
		check(t, err, "lock mark")
		check(t, e.SetMark(t.Context(), e.in(tx), "a", name, to), "set mark")
	}
	was, err := e.LockMark(t.Context(), e.in(tx), "a", name)
	check(t, err, "lock mark")
	expectMark(t, was, "10")
	check(t, tx.Commit(), "commit")
	expectMark(t, e.mark(t, "a", name, ""), "10")
}

func testMarkRollback(t *testing.T, e *entities) {
	name := newName()
	for _, before := range []string{"", "7"} {
		tx := begin(t, e.db)
		_, err := e.LockMark(t.Context(), e.in(tx), "a", name)
		check(t, err, "lock mark")
		check(t, e.SetMark(t.Context(), e.in(tx), "a", name, "8"), "set mark")
		check(t, tx.Rollback(), "roll back")
		expectMark(t, e.mark(t, "a", name, "7"), before)
	}
}

func testMarkNames(t *testing.T, e *entities) {
	name := newName()
	others := []string{name, name + " ", name + "  ", " " + name, name + "\t", name + "x", name + "X",
		name + "ä", name + "a\u0308", name + "Ä", name + "ß", name + "ss", name + "'", name + "\\", name + "%s"}
	for i, other := range others {
		expectMark(t, e.mark(t, "a", other, strconv.Itoa(i)), "")
		expectMark(t, e.mark(t, other, "a", strconv.Itoa(-i)), "")
	}
	for i, other := range others {
		expectMark(t, e.mark(t, "a", other, ""), strconv.Itoa(i))
		expectMark(t, e.mark(t, other, "a", ""), strconv.Itoa(-i))
	}
}

func testMarkNotLocked(t *testing.T, e *entities) {
	name := newName()
	tx := begin(t, e.db)
	if err := e.SetMark(t.Context(), e.in(tx), "a", name, "7"); err == nil {
		t.Error("set a missing mark: no error")
	}
	check(t, tx.Rollback(), "roll back")
	expectMark(t, e.mark(t, "a", name, ""), "")
}

func testMarkWaits(t *testing.T, e *entities) {
	for _, before := range []string{"", "7"} {
		for want, end := range map[string]func(*sql.Tx) error{"8": (*sql.Tx).Commit, before: (*sql.Tx).Rollback} {
			name := newName()
			if before != "" {
				e.mark(t, "a", name, before)
			}
			first := begin(t, e.db)
			_, err := e.LockMark(t.Context(), e.in(first), "a", name)
			check(t, err, "lock mark")
			check(t, e.SetMark(t.Context(), e.in(first), "a", name, "8"), "set mark")
			e.whileOneWaits(t, name, func() { check(t, end(first), "end the first transaction") }, func(_ *sql.Tx, mark string) {
				expectMark(t, mark, want)
			})
		}
	}
}

// whileOneWaits calls end when a second transaction waits for the mark, and then calls then with
// that transaction and the mark that it has read.
func (e *entities) whileOneWaits(t *testing.T, name string, end func(), then func(second *sql.Tx, mark string)) {
	t.Helper()
	second := begin(t, e.db)
	done := beside(func() (string, error) { return e.LockMark(t.Context(), e.in(second), "a", name) })
	awaitWaiting(t, e.Harness, e.db, 1)
	end()
	mark, err := next(t, "the second lock", done)
	check(t, err, "lock mark")
	then(second, mark)
	check(t, second.Commit(), "commit")
}

// testMarkCounts: the caller must repeat deadlocks and failures to serialise.
func testMarkCounts(t *testing.T, e *entities) {
	const counters, each = 8, 5
	name := newName()
	count := func(ctx context.Context) error {
		tx, err := e.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		mark, err := e.LockMark(ctx, e.in(tx), "a", name)
		if err != nil {
			return err
		}
		n, _ := strconv.Atoi(mark) // 0 for ""
		if err := e.SetMark(ctx, e.in(tx), "a", name, strconv.Itoa(n+1)); err != nil {
			return err
		}
		return tx.Commit()
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	var all sync.WaitGroup
	for range counters {
		all.Go(func() {
			for range each {
				for {
					err := count(ctx)
					if err == nil {
						break
					}
					if ctx.Err() != nil {
						t.Errorf("count: %v", err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	expectMark(t, e.mark(t, "a", name, ""), strconv.Itoa(counters*each))
}
