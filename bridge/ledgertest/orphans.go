package ledgertest

import (
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// older is by how much Harness.Older makes rows older. oldAge is an age that only these rows have
// then.
const (
	older  = 2 * time.Hour
	oldAge = older / 2
)

// runSweep tests every promise of Orphans, Sweep and SweptBefore, or, on an own table, that they
// are denied. Each test begins without rows, and with the watermark of earlier tests.
func runSweep(t *testing.T, d *database) {
	if sweeps := d.ledger.Features().Sweeps; sweeps == (d.Insert != nil) {
		t.Fatalf("the features say that the ledger sweeps: %t", sweeps)
	}
	if d.Insert != nil {
		_, err := d.ledger.Orphans(t.Context(), oldAge, 1)
		expectDenied(t, "orphans", err)
		_, err = d.ledger.Sweep(t.Context(), oldAge, 1)
		expectDenied(t, "sweep", err)
		_, err = d.ledger.SweptBefore(t.Context())
		expectDenied(t, "swept before", err)
		return
	}
	d.empty(t)
	run(t, d.Harness, d, []test[*database]{
		{"a sweep removes old rows and no young ones", testSweep},
		{"the watermark is above every row that is removed, and never sinks", testWatermark},
	}, []test[*database]{
		{"orphans are listed the oldest first, up to the limit", testOrphansInOrder},
		{"a sweep removes more rows than one statement does", testSweepMany},
		{"a sweep skips an uncommitted row without a wait", testSweepOpen},
		{"a sweep skips a row that another session has locked, without a wait", testSweepLocked},
		{"a sweep of rows that may be young is refused", testSweepYoung},
	}, func(t *testing.T) {
		d.expectIdle(t)
		d.empty(t)
	})
}

// empty removes all rows. The watermark stays.
func (d *database) empty(t *testing.T) {
	t.Helper()
	_, err := d.sender.DB().ExecContext(t.Context(), d.named(`DELETE FROM bridge_ledger`))
	check(t, err, "remove all rows")
}

// age makes all rows older.
func (d *database) age(t *testing.T) {
	t.Helper()
	_, err := d.sender.DB().ExecContext(t.Context(), d.Older)
	check(t, err, "make rows older")
}

func (d *database) sweep(t *testing.T, want ...uuid.UUID) []driver.Orphan {
	t.Helper()
	swept, err := d.ledger.Sweep(bounded(t), oldAge, 10_000)
	check(t, err, "sweep")
	expectOrphans(t, swept, want)
	return swept
}

func (d *database) expectListed(t *testing.T, want ...uuid.UUID) []driver.Orphan {
	t.Helper()
	orphans, err := d.ledger.Orphans(t.Context(), oldAge, 10_000)
	check(t, err, "list orphans")
	expectOrphans(t, orphans, want)
	return orphans
}

func expectOrphans(t *testing.T, got []driver.Orphan, want []uuid.UUID) {
	t.Helper()
	ids := orphanIDs(got)
	if len(ids) != len(want) {
		t.Fatalf("%d orphans, must be %d", len(ids), len(want))
	}
	for _, id := range want {
		if !contains(ids, id) {
			t.Fatalf("%s is not among the orphans", id)
		}
	}
}

func orphanIDs(orphans []driver.Orphan) []uuid.UUID {
	ids := make([]uuid.UUID, len(orphans))
	for i, o := range orphans {
		ids[i] = o.ID
	}
	return ids
}

func (d *database) watermark(t *testing.T) time.Time {
	t.Helper()
	before, err := d.ledger.SweptBefore(t.Context())
	check(t, err, "read the watermark")
	return before
}

// near fails unless two times differ by less than any machine's delay.
func near(t *testing.T, what string, got, want time.Time) {
	t.Helper()
	if d := got.Sub(want); d.Abs() > older/4 {
		t.Errorf("%s is %v, must be near %v", what, got, want)
	}
}

func testSweep(t *testing.T, d *database) {
	old, young := newIDs(3), newIDs(2)
	before := d.watermark(t)
	d.commit(t, old...)
	d.age(t)
	d.commit(t, young...)
	for _, o := range d.expectListed(t, old...) {
		near(t, "recorded_at", o.RecordedAt, time.Now().Add(-older))
	}
	d.expectCommitted(t, old, old...) // a list removes nothing
	if after := d.watermark(t); !after.Equal(before) {
		t.Errorf("the watermark was %v, is %v without a sweep", before, after)
	}
	d.sweep(t, old...)
	d.expectCommitted(t, append(old, young...), young...)
	d.expectSettled(t, old[0], driver.RolledBack)
	before = d.watermark(t)
	d.sweep(t)
	d.expectListed(t)
	if after := d.watermark(t); !after.Equal(before) {
		t.Errorf("the watermark was %v, is %v without anything removed", before, after)
	}
}

func testOrphansInOrder(t *testing.T, d *database) {
	var ids []uuid.UUID // the oldest first
	for range 4 {
		id := newID()
		d.commit(t, id)
		d.age(t)
		ids = append(ids, id)
	}
	orphans, err := d.ledger.Orphans(t.Context(), oldAge, 3)
	check(t, err, "list orphans")
	if !slices.Equal(orphanIDs(orphans), ids[:3]) {
		t.Errorf("the orphans are %v, must be %v", orphanIDs(orphans), ids[:3])
	}
	swept, err := d.ledger.Sweep(t.Context(), oldAge, 2)
	check(t, err, "sweep")
	if !slices.Equal(orphanIDs(swept), ids[:2]) {
		t.Errorf("swept are %v, must be %v", orphanIDs(swept), ids[:2])
	}
	d.expectCommitted(t, ids, ids[2:]...)
}

func testSweepMany(t *testing.T, d *database) {
	ids := newIDs(many)
	d.commit(t, ids...)
	d.age(t)
	d.sweep(t, ids...)
	d.expectCommitted(t, ids)
}

func testWatermark(t *testing.T, d *database) {
	expectAbove := func(orphans []driver.Orphan) {
		t.Helper()
		before := d.watermark(t)
		for _, o := range orphans {
			if !o.RecordedAt.Before(before) {
				t.Errorf("recorded at %v, the watermark is %v", o.RecordedAt, before)
			}
		}
	}
	first := newID()
	d.commit(t, first)
	d.age(t)
	expectAbove(d.sweep(t, first))
	high := d.watermark(t)
	near(t, "the watermark", high, time.Now().Add(-older))

	second := newID()
	d.commit(t, second)
	d.age(t)
	d.age(t)
	expectAbove(d.sweep(t, second))
	if before := d.watermark(t); !before.Equal(high) {
		t.Errorf("the watermark was %v, is %v", high, before)
	}
}

func testWatermarkFirst(t *testing.T, h Harness) {
	d := h.newDatabase(t)
	if before := d.watermark(t); !before.IsZero() {
		t.Errorf("the watermark is %v, and nothing was ever swept", before)
	}
	id := newID()
	d.commit(t, id)
	d.age(t)
	for _, statement := range d.RefuseDelete {
		_, err := d.sender.DB().ExecContext(t.Context(), statement)
		check(t, err, statement)
	}
	swept, err := d.ledger.Sweep(t.Context(), oldAge, 10)
	if err == nil || len(swept) > 0 {
		t.Fatalf("a sweep that can remove nothing: %v, %v", swept, err)
	}
	d.expectCommitted(t, []uuid.UUID{id}, id)
	if before := d.watermark(t); before.IsZero() {
		t.Error("there is no watermark, and the sweep would have removed the row next")
	}
}

// testSweepOpen: the row is old when its transaction commits, and so is removed only afterwards.
func testSweepOpen(t *testing.T, d *database) {
	d.skipWithOneWriter(t)
	open, old := newID(), newID()
	aged := func(id uuid.UUID) *sql.Tx {
		t.Helper()
		tx := d.begin(t, id)
		_, err := tx.ExecContext(t.Context(), d.Older+" WHERE id = "+d.Literal(id))
		check(t, err, "make a row older")
		return tx
	}
	tx := aged(open)
	check(t, aged(old).Commit(), "commit")
	d.promptly(t, func() { d.sweep(t, old) })
	check(t, tx.Commit(), "commit")
	d.expectCommitted(t, []uuid.UUID{open, old}, open)
	d.sweep(t, open)
}

func testSweepLocked(t *testing.T, d *database) {
	d.skipWithOneWriter(t)
	ids := newIDs(3)
	d.commit(t, ids...)
	d.age(t)
	tx := d.lockedRow(t, ids[1])
	d.promptly(t, func() { d.sweep(t, ids[0], ids[2]) })
	check(t, tx.Rollback(), "roll back")
	d.expectCommitted(t, ids, ids[1])
	d.sweep(t, ids[1])
}

func (d *database) promptly(t *testing.T, do func()) {
	t.Helper()
	start := time.Now()
	do()
	if took := time.Since(start); took > prompt {
		t.Errorf("took %v", took)
	}
}

func testSweepYoung(t *testing.T, d *database) {
	id := newID()
	d.commit(t, id)
	for _, age := range []time.Duration{driver.MinSweepAge - 1, 0, -driver.MinSweepAge} {
		if _, err := d.ledger.Sweep(t.Context(), age, 10); err == nil {
			t.Errorf("a sweep of an age of %v is no error", age)
		}
	}
	for _, limit := range []int{0, -1} {
		if _, err := d.ledger.Sweep(t.Context(), oldAge, limit); err == nil {
			t.Errorf("a limit of %d is no error", limit)
		}
		if _, err := d.ledger.Orphans(t.Context(), oldAge, limit); err == nil {
			t.Errorf("a limit of %d is no error", limit)
		}
	}
	if _, err := d.ledger.Orphans(t.Context(), -1, 10); err == nil {
		t.Error("a negative age is no error")
	}
	d.expectCommitted(t, []uuid.UUID{id}, id)
}
