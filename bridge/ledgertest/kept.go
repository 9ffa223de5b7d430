package ledgertest

import (
	"bytes"
	"database/sql"
	"math"
	"strconv"
	"testing"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// keep keeps messages in a transaction that has locked the entity, and commits.
func (e *entities) keep(t *testing.T, consumer, entity string, messages map[int64][]byte) {
	t.Helper()
	e.locked(t, consumer, entity, func(tx *sql.Tx) {
		for version, message := range messages {
			fresh, err := e.Keep(t.Context(), e.in(tx), consumer, entity, version, message)
			check(t, err, "keep message")
			if !fresh {
				t.Fatalf("version %d is reported as kept already", version)
			}
		}
	})
}

// locked runs fn in a transaction that has locked the entity, and commits.
func (e *entities) locked(t *testing.T, consumer, entity string, fn func(tx *sql.Tx)) {
	t.Helper()
	tx := begin(t, e.db)
	_, err := e.LockMark(t.Context(), e.in(tx), consumer, entity)
	check(t, err, "lock mark")
	fn(tx)
	check(t, tx.Commit(), "commit")
}

// expectFirst fails unless this is the first kept message, and that many are kept.
func (e *entities) expectFirst(t *testing.T, tx *sql.Tx, consumer, entity string, kept int, version int64, message []byte) {
	t.Helper()
	gotVersion, gotMessage, err := e.FirstKept(t.Context(), e.in(tx), consumer, entity)
	check(t, err, "read first")
	n, err := e.CountKept(t.Context(), e.in(tx), consumer, entity)
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
			check(t, e.Unkeep(t.Context(), e.in(tx), "a", entity, version), "delete")
		})
	}
	e.locked(t, "a", entity, func(tx *sql.Tx) {
		e.expectFirst(t, tx, "a", entity, 0, 0, nil)
		check(t, e.Unkeep(t.Context(), e.in(tx), "a", entity, 9), "delete a missing message")
	})
}

func testKeepTwice(t *testing.T, e *entities) {
	entity := newName()
	e.keep(t, "a", entity, map[int64][]byte{5: []byte("one")})
	e.locked(t, "a", entity, func(tx *sql.Tx) {
		fresh, err := e.Keep(t.Context(), e.in(tx), "a", entity, 5, []byte("other"))
		check(t, err, "keep again")
		if fresh {
			t.Error("one version is kept twice")
		}
		e.expectFirst(t, tx, "a", entity, 1, 5, []byte("one")) // and tx stays usable
	})
}

func testKeepRollback(t *testing.T, e *entities) {
	entity := newName()
	e.keep(t, "a", entity, map[int64][]byte{5: []byte("five")})
	tx := begin(t, e.db)
	_, err := e.LockMark(t.Context(), e.in(tx), "a", entity)
	check(t, err, "lock mark")
	_, err = e.Keep(t.Context(), e.in(tx), "a", entity, 4, []byte("four"))
	check(t, err, "keep")
	check(t, e.Unkeep(t.Context(), e.in(tx), "a", entity, 5), "delete")
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
	e.locked(t, "a", entity, func(tx *sql.Tx) { check(t, e.Unkeep(t.Context(), e.in(tx), "a", entity, 3), "delete another's") })
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
		_, err := e.LockMark(t.Context(), e.in(first), "a", entity)
		check(t, err, "lock mark")
		_, err = e.Keep(t.Context(), e.in(first), "a", entity, 5, []byte("five"))
		check(t, err, "keep")
		e.whileOneWaits(t, entity, func() { check(t, first.Commit(), "commit") }, func(second *sql.Tx, _ string) {
			e.expectFirst(t, second, "a", entity, 1, 5, []byte("five"))
		})
	}
}

func testKeptEntities(t *testing.T, e *entities) {
	consumer := newName()
	list := func(limit int) []driver.KeptEntity {
		t.Helper()
		tx := begin(t, e.db)
		all, err := e.KeptEntities(t.Context(), e.in(tx), consumer, limit)
		check(t, err, "list")
		check(t, tx.Rollback(), "roll back")
		return all
	}
	if all := list(10); len(all) != 0 {
		t.Fatalf("a new consumer has %v", all)
	}
	names := []string{newName(), newName(), newName()}
	e.mark(t, consumer, names[1], "17")
	for _, name := range []string{names[1], names[0]} {
		e.keep(t, consumer, name, map[int64][]byte{30: []byte("m"), 20: []byte("m")})
	}
	e.mark(t, consumer, names[2], "9") // no message of it is kept
	e.keep(t, "another consumer", names[2], map[int64][]byte{1: []byte("m")})

	all := list(10)
	if len(all) != 2 {
		t.Fatalf("%v are listed, must be two", all)
	}
	for _, one := range all {
		want := driver.KeptEntity{Entity: names[0], First: 20, Kept: 2, Age: one.Age}
		if one.Entity == names[1] {
			want.Entity, want.Mark = names[1], "17"
		}
		if one != want || one.Age < 0 || one.Age > wait {
			t.Errorf("%+v is listed, must be %+v", one, want)
		}
	}
	if all[0].Age < all[1].Age {
		t.Errorf("%+v is listed before one that has waited longer, %+v", all[0], all[1])
	}
	if all := list(1); len(all) != 1 {
		t.Errorf("%v are listed, must be one", all)
	}
	e.locked(t, consumer, names[0], func(tx *sql.Tx) {
		for _, version := range []int64{20, 30} {
			check(t, e.Unkeep(t.Context(), e.in(tx), consumer, names[0], version), "delete")
		}
	})
	if all := list(10); len(all) != 1 || all[0].Entity != names[1] {
		t.Errorf("%v are listed, must be the remaining ones", all)
	}
}
