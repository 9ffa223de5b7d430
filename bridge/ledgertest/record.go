package ledgertest

import (
	"database/sql"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// many is several times the IDs of one statement.
const many = 2500

func testLookup(t *testing.T, d *database) {
	committed, rolledBack := newIDs(3), newIDs(3)
	d.commit(t, committed...)
	d.rollBack(t, rolledBack...)
	asked := append(append(newIDs(3), rolledBack...), committed...)
	d.expectCommitted(t, asked, committed...)
}

func testLookupOpen(t *testing.T, d *database) {
	before, open := newID(), newID()
	d.commit(t, before)
	tx := d.begin(t, open)
	d.expectCommitted(t, []uuid.UUID{open, before}, before)
	check(t, tx.Commit(), "commit")
	d.expectCommitted(t, []uuid.UUID{open, before}, open, before)
}

func testManyIDs(t *testing.T, d *database) {
	ids := newIDs(many)
	d.commit(t, ids...)
	found, _, err := d.ledger.Committed(t.Context(), ids)
	check(t, err, "look up")
	set := make(map[uuid.UUID]bool, many)
	for _, id := range found {
		set[id] = true
	}
	for _, id := range ids {
		if !set[id] {
			t.Fatalf("the lookup did not find %s", id)
		}
	}
	if len(found) != many {
		t.Fatalf("the lookup found %d IDs, must find %d", len(found), many)
	}
	d.expectSettled(t, ids[many-1], driver.Committed)
	d.forget(t, ids...)
	if d.Insert == nil {
		d.expectCommitted(t, ids)
	}
}

func testSavepoint(t *testing.T, d *database) {
	outside, inside, after := newID(), newID(), newID()
	tx := d.begin(t, outside)
	exec := func(statement string) {
		_, err := tx.ExecContext(t.Context(), statement)
		check(t, err, statement)
	}
	exec(d.Savepoint)
	check(t, d.record(t, d.in(tx), []uuid.UUID{inside}), "record")
	exec(d.RollbackTo)
	check(t, d.record(t, d.in(tx), []uuid.UUID{after}), "record")
	check(t, tx.Commit(), "commit")

	d.expectCommitted(t, []uuid.UUID{outside, inside, after}, outside, after)
	d.expectSettled(t, outside, driver.Committed)
	d.expectSettled(t, inside, driver.RolledBack)
	d.expectSettled(t, after, driver.Committed)
}

func testDuplicate(t *testing.T, d *database) {
	committed, twice := newID(), newID()
	d.commit(t, committed)
	for name, ids := range map[string][]uuid.UUID{
		"of a committed one": {newID(), committed, newID()},
		"within one call":    append(append(newIDs(2), twice, twice), newIDs(2)...),
	} {
		tx := begin(t, d.sender.DB())
		if err := d.record(t, d.in(tx), ids); !d.isDuplicate(err) {
			t.Errorf("record a duplicate %s: %v, must be %v", name, err, bridge.ErrDuplicateID)
		}
		check(t, tx.Rollback(), "roll back")
	}
	d.expectCommitted(t, []uuid.UUID{committed, twice}, committed)
}

func testDuplicateOfOpen(t *testing.T, d *database) {
	if d.OneWriter {
		t.Skip("there are no two open transactions")
	}
	id := newID()
	first, second := d.begin(t, id), begin(t, d.sender.DB())
	done := beside(func() (struct{}, error) { return struct{}{}, d.record(t, d.in(second), []uuid.UUID{id}) })
	d.waiting(t, 1)
	check(t, first.Commit(), "commit")
	if _, err := next(t, "the second record", done); !d.isDuplicate(err) {
		t.Fatalf("record a duplicate: %v, must be %v", err, bridge.ErrDuplicateID)
	}
	check(t, second.Rollback(), "roll back")
}

// isDuplicate reports whether err refuses a duplicate. If the application inserts the rows, it is
// the driver's error.
func (d *database) isDuplicate(err error) bool {
	if d.Insert != nil {
		return err != nil
	}
	return errors.Is(err, bridge.ErrDuplicateID)
}

func testForget(t *testing.T, d *database) {
	if d.Insert != nil {
		t.Skip("the rows are the application's")
	}
	keep, gone := newID(), newID()
	d.commit(t, keep, gone)
	for range 2 {
		d.forget(t, gone, newID(), gone)
		d.expectCommitted(t, []uuid.UUID{keep, gone}, keep)
		d.expectSettled(t, gone, driver.RolledBack)
	}
	d.expectSettled(t, keep, driver.Committed)
}

func testNoIDs(t *testing.T, d *database) {
	tx := begin(t, d.sender.DB())
	check(t, d.sender.Record(t.Context(), d.in(tx), driver.Plain(nil...)), "record nothing")
	check(t, tx.Commit(), "commit")
	d.expectCommitted(t, nil)
	d.forget(t)
}

// forget fails unless Forget has left no row.
func (d *database) forget(t *testing.T, ids ...uuid.UUID) {
	t.Helper()
	d.expectLeft(t, ids)
}

// expectLeft forgets ids, and expects that the rows of want are left.
func (d *database) expectLeft(t *testing.T, ids []uuid.UUID, want ...uuid.UUID) {
	t.Helper()
	left, err := d.ledger.Forget(bounded(t), ids)
	check(t, err, "forget")
	if len(left) != len(want) {
		t.Fatalf("a forget leaves %v, must leave %v", left, want)
	}
	for _, id := range want {
		if !contains(left, id) {
			t.Fatalf("a forget leaves %v, must leave %v", left, want)
		}
	}
}

func testForgetLocked(t *testing.T, d *database) {
	if d.Insert != nil {
		t.Skip("the rows are the application's")
	}
	for _, end := range []string{"rollback", "commit"} {
		ids := newIDs(4)
		locked := ids[1]
		d.commit(t, ids...)
		tx := d.lockedRow(t, locked)
		asked := append(newIDs(1), ids...)
		start := time.Now()
		if d.OneWriter { // a writer has locked all rows
			d.expectLeft(t, asked, asked...)
			check(t, tx.Rollback(), "roll back")
			d.forget(t, ids...)
			return
		}
		d.expectLeft(t, asked, locked)
		if took := time.Since(start); took > prompt {
			t.Errorf("the forget took %v", took)
		}
		d.expectCommitted(t, slices.DeleteFunc(slices.Clone(ids), func(id uuid.UUID) bool { return id == locked }))
		if end == "rollback" {
			check(t, tx.Rollback(), "roll back")
			d.expectCommitted(t, ids, locked)
		} else {
			check(t, tx.Commit(), "commit")
		}
		d.forget(t, ids...)
		d.expectCommitted(t, ids)
	}
}

// lockedRow begins a transaction that deletes the row of an ID, as a Forget does, and holds the
// lock until it ends.
func (d *database) lockedRow(t *testing.T, id uuid.UUID) *sql.Tx {
	t.Helper()
	tx := begin(t, d.sender.DB())
	_, err := tx.ExecContext(t.Context(), d.named("DELETE FROM bridge_ledger WHERE id = ")+d.Literal(id))
	check(t, err, "lock a row")
	return tx
}

// skipWithOneWriter skips a test of two writers.
func (d *database) skipWithOneWriter(t *testing.T) {
	t.Helper()
	if d.OneWriter {
		t.Skip("there are no two writers")
	}
}
