package ledgertest

import (
	"bytes"
	"context"
	"database/sql"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
)

// runEntities shows that the inbox of h keeps every promise of bridge.Keeper. The
// inbox's tables are in db.
func runEntities(t *testing.T, h Harness, db *sql.DB, inbox bridge.Inbox) {
	tests := []struct {
		name string
		test func(*testing.T, *entities)
	}{
		{"a mark is empty until it is set, and then what was set last", testMark},
		{"a rollback takes back a mark and a lock", testMarkRollback},
		{"marks of consumers and names that differ in case, in spaces or in accents are different", testMarkNames},
		{"marks, consumers and names of the greatest length are kept, and none longer", testMarkLength},
		{"a mark that is not locked cannot be made by setting it", testMarkNotLocked},
		{"who waits for the lock of a mark gets what the other has committed", testMarkWaitsForCommit},
		{"who waits for the lock of a mark gets what was before the other's rollback", testMarkWaitsForRollback},
		{"who waits for the lock of a new mark gets what the other has committed", testNewMarkWaitsForCommit},
		{"who waits for the lock of a new mark gets an empty one after the other's rollback", testNewMarkWaitsForRollback},
		{"of many that count on one mark from the beginning none is lost", testMarkCounts},
		{"the lock of a mark keeps nobody from another", testMarkOthers},

		{"kept messages come back by their versions, byte by byte", testKeep},
		{"a version is kept once", testKeepTwice},
		{"a rollback takes back what was kept and what was deleted", testKeepRollback},
		{"messages are kept for one consumer and one entity", testKeepScope},
		{"who waits for the lock of a mark sees what the other has kept", testKeepUnderLock},
		{"entities with kept messages are listed, those first that wait longest", testKeptEntities},
	}
	keeper, ok := inbox.(bridge.Keeper)
	if !ok {
		t.Fatalf("%T is no bridge.Keeper", inbox)
	}
	e := &entities{h, keeper, db}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.test(t, e) })
	}
}

type entities struct {
	Harness
	bridge.Keeper
	db *sql.DB
}

func newName() string { return newID().String() }

// mark locks a mark in a transaction of its own, sets it unless to is empty, and
// commits. It returns what the mark was.
func (e *entities) mark(t *testing.T, consumer, name, to string) string {
	t.Helper()
	tx := begin(t, e.db)
	was, err := e.LockMark(t.Context(), tx, consumer, name)
	check(t, err, "lock mark")
	if to != "" {
		check(t, e.SetMark(t.Context(), tx, consumer, name, to), "set mark")
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
		_, err := e.LockMark(t.Context(), tx, "a", name)
		check(t, err, "lock mark")
		check(t, e.SetMark(t.Context(), tx, "a", name, to), "set mark")
	}
	was, err := e.LockMark(t.Context(), tx, "a", name)
	check(t, err, "lock mark")
	expectMark(t, was, "10")
	check(t, tx.Commit(), "commit")
	expectMark(t, e.mark(t, "a", name, ""), "10")
}

func testMarkRollback(t *testing.T, e *entities) {
	name := newName()
	for _, before := range []string{"", "7"} {
		tx := begin(t, e.db)
		_, err := e.LockMark(t.Context(), tx, "a", name)
		check(t, err, "lock mark")
		check(t, e.SetMark(t.Context(), tx, "a", name, "8"), "set mark")
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

func testMarkLength(t *testing.T, e *entities) {
	long := newName() + strings.Repeat("ä", 109) + "x" // 255 bytes
	expectMark(t, e.mark(t, long, long, long), "")
	expectMark(t, e.mark(t, long, long, ""), long)

	tooLong := long + "x"
	for _, pair := range [][2]string{{"a", tooLong}, {tooLong, "a"}, {"a", ""}, {"", "a"}} {
		tx := begin(t, e.db)
		if mark, err := e.LockMark(t.Context(), tx, pair[0], pair[1]); err == nil {
			t.Errorf("lock the mark of a consumer and a name of %d and %d bytes: %q", len(pair[0]), len(pair[1]), mark)
		}
		check(t, tx.Rollback(), "roll back")
	}
	for _, mark := range []string{"", tooLong} {
		tx := begin(t, e.db)
		_, err := e.LockMark(t.Context(), tx, "a", long)
		check(t, err, "lock mark")
		if err := e.SetMark(t.Context(), tx, "a", long, mark); err == nil {
			t.Errorf("set a mark of %d bytes: no error", len(mark))
		}
		check(t, tx.Rollback(), "roll back")
	}
}

func testMarkNotLocked(t *testing.T, e *entities) {
	name := newName()
	tx := begin(t, e.db)
	if err := e.SetMark(t.Context(), tx, "a", name, "7"); err == nil {
		t.Error("set a mark that is not there: no error")
	}
	check(t, tx.Rollback(), "roll back")
	expectMark(t, e.mark(t, "a", name, ""), "")
}

func testMarkWaitsForCommit(t *testing.T, e *entities) {
	name := newName()
	e.mark(t, "a", name, "7")
	e.testMarkWaits(t, name, (*sql.Tx).Commit, "8")
}

func testMarkWaitsForRollback(t *testing.T, e *entities) {
	name := newName()
	e.mark(t, "a", name, "7")
	e.testMarkWaits(t, name, (*sql.Tx).Rollback, "7")
}

func testNewMarkWaitsForCommit(t *testing.T, e *entities) {
	e.testMarkWaits(t, newName(), (*sql.Tx).Commit, "8")
}

func testNewMarkWaitsForRollback(t *testing.T, e *entities) {
	e.testMarkWaits(t, newName(), (*sql.Tx).Rollback, "")
}

// testMarkWaits sets a mark to 8 in a transaction that end ends when another one
// waits for the mark.
func (e *entities) testMarkWaits(t *testing.T, name string, end func(*sql.Tx) error, want string) {
	t.Helper()
	first := begin(t, e.db)
	_, err := e.LockMark(t.Context(), first, "a", name)
	check(t, err, "lock mark")
	check(t, e.SetMark(t.Context(), first, "a", name, "8"), "set mark")
	e.whileOneWaits(t, name, func() { check(t, end(first), "end the first transaction") }, func(_ *sql.Tx, mark string) {
		expectMark(t, mark, want)
	})
}

// whileOneWaits calls end when a second transaction waits for the mark, and then
// then with that transaction and what it has got.
func (e *entities) whileOneWaits(t *testing.T, name string, end func(), then func(second *sql.Tx, mark string)) {
	t.Helper()
	second := begin(t, e.db)
	type result struct {
		mark string
		err  error
	}
	done := make(chan result, 1)
	go func() {
		mark, err := e.LockMark(t.Context(), second, "a", name)
		done <- result{mark, err}
	}()
	awaitWaiting(t, e.Harness, e.db, 1)
	end()
	got := <-done
	check(t, got.err, "lock mark")
	then(second, got.mark)
	check(t, second.Commit(), "commit")
}

// testMarkCounts: deadlocks and failures to serialise are the caller's to repeat.
func testMarkCounts(t *testing.T, e *entities) {
	const counters, each = 8, 5
	name := newName()
	count := func(ctx context.Context) error {
		tx, err := e.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		mark, err := e.LockMark(ctx, tx, "a", name)
		if err != nil {
			return err
		}
		n, _ := strconv.Atoi(mark) // 0 for ""
		if err := e.SetMark(ctx, tx, "a", name, strconv.Itoa(n+1)); err != nil {
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

func testMarkOthers(t *testing.T, e *entities) {
	if e.OneWriter {
		t.Skip("there are no two writers")
	}
	names := []string{newName(), newName(), newName()}
	slices.Sort(names)
	e.mark(t, "a", names[1], "7")
	tx := begin(t, e.db)
	_, err := e.LockMark(t.Context(), tx, "a", names[1])
	check(t, err, "lock mark")
	check(t, e.SetMark(t.Context(), tx, "a", names[1], "8"), "set mark")
	_, err = e.Keep(t.Context(), tx, "a", names[1], 10, []byte("m"))
	check(t, err, "keep")
	_, _, err = e.FirstKept(t.Context(), tx, "a", names[1])
	check(t, err, "read")

	ctx, cancel := context.WithTimeout(t.Context(), prompt)
	defer cancel()
	for _, name := range []string{names[0], names[2]} { // before and after it, and new
		other := begin(t, e.db)
		_, err := e.LockMark(ctx, other, "a", name)
		check(t, err, "lock another mark")
		_, _, err = e.FirstKept(ctx, other, "a", name)
		check(t, err, "read")
		_, err = e.Keep(ctx, other, "a", name, 10, []byte("m"))
		check(t, err, "keep")
		check(t, other.Commit(), "commit")
	}
	check(t, tx.Commit(), "commit")
}

// keep keeps messages in a transaction that has locked the entity, and commits.
func (e *entities) keep(t *testing.T, consumer, entity string, messages map[int64][]byte) {
	t.Helper()
	e.locked(t, consumer, entity, func(tx *sql.Tx) {
		for version, message := range messages {
			fresh, err := e.Keep(t.Context(), tx, consumer, entity, version, message)
			check(t, err, "keep message")
			if !fresh {
				t.Fatalf("version %d is said to be kept already", version)
			}
		}
	})
}

// locked runs fn in a transaction that has locked the entity, and commits.
func (e *entities) locked(t *testing.T, consumer, entity string, fn func(tx *sql.Tx)) {
	t.Helper()
	tx := begin(t, e.db)
	_, err := e.LockMark(t.Context(), tx, consumer, entity)
	check(t, err, "lock mark")
	fn(tx)
	check(t, tx.Commit(), "commit")
}

// expectFirst fails unless the first kept message is this one, and so many are kept.
func (e *entities) expectFirst(t *testing.T, tx *sql.Tx, consumer, entity string, kept int, version int64, message []byte) {
	t.Helper()
	gotVersion, gotMessage, err := e.FirstKept(t.Context(), tx, consumer, entity)
	check(t, err, "read first")
	n, err := e.CountKept(t.Context(), tx, consumer, entity)
	check(t, err, "count")
	if n != kept || gotVersion != version || !bytes.Equal(gotMessage, message) || (gotMessage == nil) != (message == nil) {
		t.Fatalf("%d are kept, the first is version %d of %d bytes; must be %d, and version %d of %d bytes",
			n, gotVersion, len(gotMessage), kept, version, len(message))
	}
}

func testKeep(t *testing.T, e *entities) {
	entity := newName()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	messages := map[int64][]byte{
		0:             []byte("zero"),
		9:             every,
		10:            bytes.Repeat(every, 1200), // longer than any packet, page or row
		math.MaxInt64: []byte("last"),
	}
	e.locked(t, "a", entity, func(tx *sql.Tx) { e.expectFirst(t, tx, "a", entity, 0, 0, nil) })
	e.keep(t, "a", entity, messages)
	for i, version := range []int64{0, 9, 10, math.MaxInt64} {
		e.locked(t, "a", entity, func(tx *sql.Tx) {
			e.expectFirst(t, tx, "a", entity, len(messages)-i, version, messages[version])
			check(t, e.Unkeep(t.Context(), tx, "a", entity, version), "delete")
		})
	}
	e.locked(t, "a", entity, func(tx *sql.Tx) {
		e.expectFirst(t, tx, "a", entity, 0, 0, nil)
		check(t, e.Unkeep(t.Context(), tx, "a", entity, 9), "delete what is not there")
	})
}

func testKeepTwice(t *testing.T, e *entities) {
	entity := newName()
	e.keep(t, "a", entity, map[int64][]byte{5: []byte("one")})
	e.locked(t, "a", entity, func(tx *sql.Tx) {
		fresh, err := e.Keep(t.Context(), tx, "a", entity, 5, []byte("other"))
		check(t, err, "keep again")
		if fresh {
			t.Error("one version is kept twice")
		}
		e.expectFirst(t, tx, "a", entity, 1, 5, []byte("one")) // and tx goes on
	})
}

func testKeepRollback(t *testing.T, e *entities) {
	entity := newName()
	e.keep(t, "a", entity, map[int64][]byte{5: []byte("five")})
	tx := begin(t, e.db)
	_, err := e.LockMark(t.Context(), tx, "a", entity)
	check(t, err, "lock mark")
	_, err = e.Keep(t.Context(), tx, "a", entity, 4, []byte("four"))
	check(t, err, "keep")
	check(t, e.Unkeep(t.Context(), tx, "a", entity, 5), "delete")
	e.expectFirst(t, tx, "a", entity, 1, 4, []byte("four"))
	check(t, tx.Rollback(), "roll back")
	e.locked(t, "a", entity, func(tx *sql.Tx) { e.expectFirst(t, tx, "a", entity, 1, 5, []byte("five")) })
}

func testKeepScope(t *testing.T, e *entities) {
	entity := newName()
	all := []struct{ consumer, entity string }{{"a", entity}, {"b", entity}, {"a", entity + " "}, {"a", entity + "x"}, {"A", entity}}
	for i, one := range all {
		e.keep(t, one.consumer, one.entity, map[int64][]byte{int64(i): []byte(strconv.Itoa(i))})
	}
	e.locked(t, "a", entity, func(tx *sql.Tx) { check(t, e.Unkeep(t.Context(), tx, "a", entity, 3), "delete another's") })
	for i, one := range all {
		e.locked(t, one.consumer, one.entity, func(tx *sql.Tx) {
			e.expectFirst(t, tx, one.consumer, one.entity, 1, int64(i), []byte(strconv.Itoa(i)))
		})
	}
}

func testKeepUnderLock(t *testing.T, e *entities) {
	for name, entity := range map[string]string{"new": newName(), "known": newName()} {
		if name == "known" {
			e.mark(t, "a", entity, "3")
		}
		first := begin(t, e.db)
		_, err := e.LockMark(t.Context(), first, "a", entity)
		check(t, err, "lock mark")
		_, err = e.Keep(t.Context(), first, "a", entity, 5, []byte("five"))
		check(t, err, "keep")
		e.whileOneWaits(t, entity, func() { check(t, first.Commit(), "commit") }, func(second *sql.Tx, _ string) {
			e.expectFirst(t, second, "a", entity, 1, 5, []byte("five"))
		})
	}
}

func testKeptEntities(t *testing.T, e *entities) {
	consumer := newName()
	list := func(limit int) []bridge.KeptEntity {
		t.Helper()
		tx := begin(t, e.db)
		all, err := e.KeptEntities(t.Context(), tx, consumer, limit)
		check(t, err, "list")
		check(t, tx.Rollback(), "roll back")
		return all
	}
	if all := list(10); len(all) != 0 {
		t.Fatalf("of a new consumer there are %v", all)
	}
	names := []string{newName(), newName(), newName()}
	e.mark(t, consumer, names[1], "17")
	for _, name := range []string{names[1], names[0]} {
		e.keep(t, consumer, name, map[int64][]byte{30: []byte("m"), 20: []byte("m")})
	}
	e.mark(t, consumer, names[2], "9") // nothing is kept of it
	e.keep(t, "another consumer", names[2], map[int64][]byte{1: []byte("m")})

	all := list(10)
	if len(all) != 2 {
		t.Fatalf("listed are %v, must be two", all)
	}
	for _, one := range all {
		want := bridge.KeptEntity{Entity: names[0], First: 20, Kept: 2, Age: one.Age}
		if one.Entity == names[1] {
			want.Entity, want.Mark = names[1], "17"
		}
		if one != want || one.Age < 0 || one.Age > wait {
			t.Errorf("listed is %+v, must be %+v", one, want)
		}
	}
	if all[0].Age < all[1].Age {
		t.Errorf("%+v is listed before one that has waited longer, %+v", all[0], all[1])
	}
	if all := list(1); len(all) != 1 {
		t.Errorf("listed are %v, must be one", all)
	}
	e.locked(t, consumer, names[0], func(tx *sql.Tx) {
		for _, version := range []int64{20, 30} {
			check(t, e.Unkeep(t.Context(), tx, consumer, names[0], version), "delete")
		}
	})
	if all := list(10); len(all) != 1 || all[0].Entity != names[1] {
		t.Errorf("listed are %v, must be what is left", all)
	}
}
