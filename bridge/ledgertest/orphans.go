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
	s := d.sweeping()
	s.empty(t)
	run(t, d.Harness, s, []test[*sweeping]{
		{"a sweep removes old rows and no young ones", testSweep},
		{"the watermark is above every row that is removed, and never sinks", testWatermark},
	}, []test[*sweeping]{
		{"orphans are listed the oldest first, up to the limit", testOrphansInOrder},
		{"a sweep removes more rows than one statement does", testSweepMany},
		{"a sweep skips an uncommitted row without a wait", testSweepOpen},
		{"a sweep skips a row that another session has locked, without a wait", testSweepLocked},
		{"a sweep of rows that may be young is refused", testSweepYoung},
	}, func(t *testing.T) {
		s.expectIdle(t)
		s.empty(t)
	})
}

// A sweeping is a database whose ledger sweeps.
type sweeping struct{ *database }

func (d *database) sweeping() *sweeping { return &sweeping{d} }

// empty removes all rows. The watermark stays.
func (s *sweeping) empty(t *testing.T) {
	t.Helper()
	_, err := s.sender.DB().ExecContext(t.Context(), s.named(`DELETE FROM bridge_ledger`))
	check(t, err, "remove all rows")
}

// age makes all rows older.
func (s *sweeping) age(t *testing.T) {
	t.Helper()
	_, err := s.sender.DB().ExecContext(t.Context(), s.Older)
	check(t, err, "make rows older")
}

func (s *sweeping) sweep(t *testing.T, want ...uuid.UUID) []driver.Orphan {
	t.Helper()
	swept, err := s.ledger.Sweep(bounded(t), oldAge, 10_000)
	check(t, err, "sweep")
	expectOrphans(t, swept, want)
	return swept
}

func (s *sweeping) expectListed(t *testing.T, want ...uuid.UUID) []driver.Orphan {
	t.Helper()
	orphans, err := s.ledger.Orphans(t.Context(), oldAge, 10_000)
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

func (s *sweeping) watermark(t *testing.T) time.Time {
	t.Helper()
	before, err := s.ledger.SweptBefore(t.Context())
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

func testSweep(t *testing.T, s *sweeping) {
	old, young := newIDs(3), newIDs(2)
	before := s.watermark(t)
	s.commit(t, old...)
	s.age(t)
	s.commit(t, young...)
	for _, o := range s.expectListed(t, old...) {
		near(t, "recorded_at", o.RecordedAt, time.Now().Add(-older))
	}
	s.expectCommitted(t, old, old...) // a list removes nothing
	if after := s.watermark(t); !after.Equal(before) {
		t.Errorf("the watermark was %v, is %v without a sweep", before, after)
	}
	s.sweep(t, old...)
	s.expectCommitted(t, append(old, young...), young...)
	s.expectSettled(t, old[0], driver.RolledBack)
	before = s.watermark(t)
	s.sweep(t)
	s.expectListed(t)
	if after := s.watermark(t); !after.Equal(before) {
		t.Errorf("the watermark was %v, is %v without anything removed", before, after)
	}
}

func testOrphansInOrder(t *testing.T, s *sweeping) {
	var ids []uuid.UUID // the oldest first
	for range 4 {
		id := newID()
		s.commit(t, id)
		s.age(t)
		ids = append(ids, id)
	}
	orphans, err := s.ledger.Orphans(t.Context(), oldAge, 3)
	check(t, err, "list orphans")
	if !slices.Equal(orphanIDs(orphans), ids[:3]) {
		t.Errorf("the orphans are %v, must be %v", orphanIDs(orphans), ids[:3])
	}
	swept, err := s.ledger.Sweep(t.Context(), oldAge, 2)
	check(t, err, "sweep")
	if !slices.Equal(orphanIDs(swept), ids[:2]) {
		t.Errorf("swept are %v, must be %v", orphanIDs(swept), ids[:2])
	}
	s.expectCommitted(t, ids, ids[2:]...)
}

func testSweepMany(t *testing.T, s *sweeping) {
	ids := newIDs(many)
	s.commit(t, ids...)
	s.age(t)
	s.sweep(t, ids...)
	s.expectCommitted(t, ids)
}

func testWatermark(t *testing.T, s *sweeping) {
	expectAbove := func(orphans []driver.Orphan) {
		t.Helper()
		before := s.watermark(t)
		for _, o := range orphans {
			if !o.RecordedAt.Before(before) {
				t.Errorf("recorded at %v, the watermark is %v", o.RecordedAt, before)
			}
		}
	}
	first := newID()
	s.commit(t, first)
	s.age(t)
	expectAbove(s.sweep(t, first))
	high := s.watermark(t)
	near(t, "the watermark", high, time.Now().Add(-older))

	second := newID()
	s.commit(t, second)
	s.age(t)
	s.age(t)
	expectAbove(s.sweep(t, second))
	if before := s.watermark(t); !before.Equal(high) {
		t.Errorf("the watermark was %v, is %v", high, before)
	}
}

func testWatermarkFirst(t *testing.T, h Harness) {
	s := h.newDatabase(t).sweeping()
	if before := s.watermark(t); !before.IsZero() {
		t.Errorf("the watermark is %v, and nothing was ever swept", before)
	}
	id := newID()
	s.commit(t, id)
	s.age(t)
	for _, statement := range s.RefuseDelete {
		_, err := s.sender.DB().ExecContext(t.Context(), statement)
		check(t, err, statement)
	}
	swept, err := s.ledger.Sweep(t.Context(), oldAge, 10)
	if err == nil || len(swept) > 0 {
		t.Fatalf("a sweep that can remove nothing: %v, %v", swept, err)
	}
	s.expectCommitted(t, []uuid.UUID{id}, id)
	if before := s.watermark(t); before.IsZero() {
		t.Error("there is no watermark, and the sweep would have removed the row next")
	}
}

// testSweepOpen: the row is old when its transaction commits, and so is removed only afterwards.
func testSweepOpen(t *testing.T, s *sweeping) {
	if s.OneWriter {
		t.Skip("there are no two writers")
	}
	open, old := newID(), newID()
	aged := func(id uuid.UUID) *sql.Tx {
		t.Helper()
		tx := s.begin(t, id)
		_, err := tx.ExecContext(t.Context(), s.Older+" WHERE id = "+s.Literal(id))
		check(t, err, "make a row older")
		return tx
	}
	tx := aged(open)
	check(t, aged(old).Commit(), "commit")
	s.promptly(t, func() { s.sweep(t, old) })
	check(t, tx.Commit(), "commit")
	s.expectCommitted(t, []uuid.UUID{open, old}, open)
	s.sweep(t, open)
}

func testSweepLocked(t *testing.T, s *sweeping) {
	s.skipWithOneWriter(t)
	ids := newIDs(3)
	s.commit(t, ids...)
	s.age(t)
	tx := s.lockedRow(t, ids[1])
	s.promptly(t, func() { s.sweep(t, ids[0], ids[2]) })
	check(t, tx.Rollback(), "roll back")
	s.expectCommitted(t, ids, ids[1])
	s.sweep(t, ids[1])
}

func (s *sweeping) promptly(t *testing.T, do func()) {
	t.Helper()
	start := time.Now()
	do()
	if took := time.Since(start); took > prompt {
		t.Errorf("took %v", took)
	}
}

func testSweepYoung(t *testing.T, s *sweeping) {
	id := newID()
	s.commit(t, id)
	for _, age := range []time.Duration{driver.MinSweepAge - 1, 0, -driver.MinSweepAge} {
		if _, err := s.ledger.Sweep(t.Context(), age, 10); err == nil {
			t.Errorf("a sweep of an age of %v is no error", age)
		}
	}
	for _, limit := range []int{0, -1} {
		if _, err := s.ledger.Sweep(t.Context(), oldAge, limit); err == nil {
			t.Errorf("a limit of %d is no error", limit)
		}
		if _, err := s.ledger.Orphans(t.Context(), oldAge, limit); err == nil {
			t.Errorf("a limit of %d is no error", limit)
		}
	}
	if _, err := s.ledger.Orphans(t.Context(), -1, 10); err == nil {
		t.Error("a negative age is no error")
	}
	s.expectCommitted(t, []uuid.UUID{id}, id)
}
