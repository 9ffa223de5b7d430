package ledgertest

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
)

// Well fails on a finding that is not ok, unless its check is in but; on an incomplete or repeated
// finding; and on fewer than 8 findings.
func Well(t *testing.T, of inspect.Diagnoser, but ...string) {
	t.Helper()
	findings, err := of.Diagnose(t.Context())
	check(t, err, "diagnose")
	if len(findings) < 8 {
		t.Errorf("%d findings: %+v", len(findings), findings)
	}
	for i, f := range findings {
		t.Logf("%s: %s", f.Check, f.Text)
		if f.Level != inspect.OK && !slices.Contains(but, f.Check) {
			t.Errorf("%s: %s: %s (%s)", f.Check, f.Level, f.Text, f.Fix)
		}
		if f.Check == "" || f.Text == "" || f.Level == inspect.OK && f.Fix != "" {
			t.Errorf("not a whole finding: %+v", f)
		}
		if slices.ContainsFunc(findings[:i], func(other inspect.Finding) bool { return other.Check == f.Check }) {
			t.Errorf("%s is reported twice", f.Check)
		}
	}
}

// statisticsPause is longer than InnoDB's refresh of its tables of transactions and locks: it
// renews them only after 100 ms without a reader.
const statisticsPause = 200 * time.Millisecond

// Finds waits for a finding of the check with that level and text: a server may apply a change a
// moment later.
func Finds(t *testing.T, of inspect.Diagnoser, what string, level inspect.Level, says string) {
	t.Helper()
	var found inspect.Finding
	eventuallySaying(t, statisticsPause, func() string {
		return fmt.Sprintf("%s: the finding is %+v, must be %s and contain %q", what, found, level, says)
	}, func() bool {
		findings, err := of.Diagnose(t.Context())
		check(t, err, "diagnose")
		found = inspect.Finding{Text: "no such check"}
		if i := slices.IndexFunc(findings, func(f inspect.Finding) bool { return f.Check == what }); i >= 0 {
			found = findings[i]
		}
		return found.Level == level && strings.Contains(found.Text, says)
	})
	if wants := level == inspect.Warning || level == inspect.Error; wants && found.Fix == "" {
		t.Errorf("%+v has no fix", found)
	}
}

// A CarriedInspector is the interface for operators to a ledger's carried rows.
type CarriedInspector interface {
	inspect.CarriedReader
	inspect.Advancer
}

// ReadsCarried tests that a CarriedReader of the ledger sees the rows that carry messages, and only
// committed ones, due or not; that it lists the rows that wait for their time; and that
// Advance makes one of these due. The ledger must be empty. For conflict see Harness.Conflict.
func ReadsCarried(t *testing.T, ledger driver.Ledger, of CarriedInspector, conflict func(error) bool) {
	t.Helper()
	record := func(entries ...driver.Entry) *sql.Tx {
		t.Helper()
		tx, err := ledger.DB().BeginTx(t.Context(), nil)
		check(t, err, "begin")
		check(t, ledger.Record(t.Context(), bridge.SQL(tx), entries), "record")
		return tx
	}
	expect := func(limit, want int) {
		t.Helper()
		n, err := of.CountCarried(t.Context(), limit)
		check(t, err, "count")
		if n != want {
			t.Errorf("up to %d it counts %d, must be %d", limit, n, want)
		}
	}
	row := func(id uuid.UUID) *inspect.CarriedRow {
		t.Helper()
		row, err := of.CarriedRow(t.Context(), id)
		check(t, err, "read the row")
		return row
	}
	expect(10, 0)
	entries := append(slices.Concat(newCarried(2), newUnpublished(1)), driver.Plain(newID())...)
	check(t, record(entries...).Commit(), "commit")
	expect(10, 3)
	expect(2, 2)
	for _, e := range entries {
		got := row(e.ID)
		if got == nil || e.Message == nil {
			if got != nil || e.Message != nil {
				t.Errorf("%+v has the row %+v", e, got)
			}
			continue
		}
		// SQLite keeps the record's time in seconds.
		if grace := got.StageAt.Sub(got.RecordedAt); got.ID != e.ID || got.Bytes != int64(len(e.Message)) || (grace == 0) != e.Unpublished || grace < 0 || grace > driver.PublishedGrace+tick ||
			time.Since(got.RecordedAt).Abs() > time.Minute {
			t.Errorf("%+v has the row %+v", e, got)
		}
	}
	check(t, ledger.Touch(t.Context(), []uuid.UUID{entries[2].ID}), "touch")
	rows, err := of.CarriedRows(t.Context(), 10)
	check(t, err, "list")
	if len(rows) != 3 || rows[2] != *row(entries[2].ID) || rows[0].ID == rows[1].ID || !slices.IsSortedFunc(rows, func(a, b inspect.CarriedRow) int { return a.StageAt.Compare(b.StageAt) }) {
		t.Errorf("it lists %+v", rows)
	}
	if rows, err = of.CarriedRows(t.Context(), 1); err != nil || len(rows) != 1 {
		t.Errorf("up to one it lists %+v, %v", rows, err)
	}
	if got := row(entries[2].ID); got == nil || got.StageAt.Sub(got.RecordedAt) < driver.StageAgainAfter-tick {
		t.Errorf("a touched row is %+v", got)
	}
	expect(10, 3)
	if ledger.DB().Stats().MaxOpenConnections != 1 {
		open := newCarried(1)
		tx := record(open...)
		if got := row(open[0].ID); got != nil {
			t.Errorf("an open transaction has the row %+v", got)
		}
		expect(10, 3)
		check(t, tx.Rollback(), "roll back")
	}
	_, err = ledger.Forget(t.Context(), idsOfEntries(entries))
	check(t, err, "forget")
	expect(10, 0)
	if got := row(entries[0].ID); got != nil {
		t.Errorf("a forgotten row is %+v", got)
	}
	readsDelayed(t, ledger, of)
	advances(t, ledger, of)
	advancesOrCancels(t, ledger, of, conflict)
	publishesBeforeItsTime(t, ledger, of)
}

// delayedBy commits a message for each of hours, delayed by that many hours and about one more.
func delayedBy(t *testing.T, ledger driver.Ledger, hours ...int) []driver.Entry {
	t.Helper()
	_, now, err := ledger.Due(t.Context(), driver.DueRow{}, 1)
	check(t, err, "read the clock")
	entries := newCarried(len(hours))
	for i, h := range hours {
		entries[i].NotBefore = now.Truncate(time.Millisecond).Add(time.Duration(1+h)*time.Hour + 300*time.Millisecond)
	}
	check(t, within(t.Context(), ledger.DB(), func(tx *sql.Tx) error {
		return ledger.Record(t.Context(), bridge.SQL(tx), entries)
	}), "record delayed messages")
	return entries
}

// readsDelayed tests that delayed messages are counted and listed until their time has come or a
// copy was published, and no others.
func readsDelayed(t *testing.T, ledger driver.Ledger, of CarriedInspector) {
	t.Helper()
	expect := func(limit int, want ...driver.Entry) {
		t.Helper()
		rows, err := of.DelayedRows(t.Context(), limit)
		check(t, err, "list delayed rows")
		n, err := of.CountDelayed(t.Context(), limit)
		check(t, err, "count delayed rows")
		if n != len(want) || len(rows) != len(want) {
			t.Fatalf("up to %d are counted %d, listed %+v, must be %d", limit, n, rows, len(want))
		}
		for i, row := range rows {
			if late := row.StageAt.Sub(want[i].NotBefore); row.ID != want[i].ID || late < 0 || late > time.Millisecond || row.Bytes != int64(len(want[i].Message)) ||
				!row.Unpublished() || !row.Delayed(want[i].NotBefore.Add(-time.Millisecond)) || row.Delayed(want[i].NotBefore.Add(time.Second)) {
				t.Errorf("row %d is %+v, must be %+v", i+1, row, want[i])
			}
		}
	}
	others := slices.Concat(newCarried(2), newUnpublished(2), driver.Plain(newID()))
	check(t, within(t.Context(), ledger.DB(), func(tx *sql.Tx) error {
		return ledger.Record(t.Context(), bridge.SQL(tx), others)
	}), "record others")
	check(t, ledger.Touch(t.Context(), idsOfEntries(others[1:3])), "touch") // due later, and published
	expect(10)
	e := delayedBy(t, ledger, 2, 0, 1)
	expect(10, e[1], e[2], e[0])
	expect(2, e[1], e[2])
	_, err := ledger.Forget(t.Context(), idsOfEntries(slices.Concat(e, others)))
	check(t, err, "forget")
	expect(10)
}

// publishesBeforeItsTime tests that Cancel deletes no row that was claimed or touched at a time
// before its record, as after a step of the database's clock.
func publishesBeforeItsTime(t *testing.T, ledger driver.Ledger, of CarriedInspector) {
	t.Helper()
	e := delayedBy(t, ledger, 0, 1)
	rows, err := of.DelayedRows(t.Context(), 1)
	check(t, err, "list delayed rows")
	claimed, err := ledger.Claim(t.Context(), []driver.DueRow{{ID: rows[0].ID, RecordedAt: rows[0].RecordedAt, StageAt: rows[0].StageAt}})
	check(t, err, "claim")
	expectMessages(t, claimed, e[0])
	check(t, ledger.Touch(t.Context(), idsOfEntries(e[1:])), "touch")
	for _, entry := range e {
		check(t, within(t.Context(), ledger.DB(), func(tx *sql.Tx) error {
			done, err := ledger.Cancel(t.Context(), bridge.SQL(tx), entry.ID)
			if done {
				t.Error("a message is cancelled although a copy may exist")
			}
			return err
		}), "cancel")
	}
	_, err = ledger.Forget(t.Context(), idsOfEntries(e))
	check(t, err, "forget")
}

// advances tests Advance on one row: the row is due at once and still unpublished, so a Cancel
// deletes it, but not after a Claim.
func advances(t *testing.T, ledger driver.Ledger, of CarriedInspector) {
	t.Helper()
	advance := func(id uuid.UUID, want bool) {
		t.Helper()
		if done, err := of.Advance(t.Context(), id); err != nil || done != want {
			t.Fatalf("advance returns %t, %v, must return %t", done, err, want)
		}
	}
	due := func(want ...uuid.UUID) []driver.DueRow {
		t.Helper()
		var rows []driver.DueRow
		eventually(t, "the rows are due", func() bool { // recorded_at of SQLite is rounded up to the second
			var err error
			rows, _, err = ledger.Due(bounded(t), driver.DueRow{}, 10)
			check(t, err, "list due rows")
			return len(rows) >= len(want)
		})
		expectIDs(t, "are due", idsOfDue(rows), want)
		return rows
	}
	cancel := func(id uuid.UUID) (done bool) {
		t.Helper()
		check(t, within(t.Context(), ledger.DB(), func(tx *sql.Tx) (err error) {
			done, err = ledger.Cancel(t.Context(), bridge.SQL(tx), id)
			return err
		}), "cancel")
		return done
	}
	e := delayedBy(t, ledger, 0, 1, 2)
	due()
	_, before, err := ledger.Due(t.Context(), driver.DueRow{}, 1)
	check(t, err, "read the clock")
	advance(e[0].ID, true)
	advance(e[1].ID, true)
	advance(e[0].ID, false) // it is due already
	rows := due(e[0].ID, e[1].ID)
	for _, r := range rows {
		between(t, "the stage time after an advance", r.StageAt, before, before.Add(time.Minute))
		if !r.Unpublished() || r.RecordedAt.Sub(r.StageAt) > tick {
			t.Errorf("an advanced row is %+v", r)
		}
	}
	if !cancel(e[1].ID) {
		t.Error("an advanced message that no verifier has claimed is not cancelled")
	}
	advance(e[1].ID, false)
	claimed, err := ledger.Claim(t.Context(), due(e[0].ID))
	check(t, err, "claim")
	expectMessages(t, claimed, e[0])
	if cancel(e[0].ID) {
		t.Error("a message that was advanced and then claimed is cancelled, although a copy may exist")
	}
	advance(e[0].ID, false)
	due()
	if n, err := of.CountDelayed(t.Context(), 10); err != nil || n != 1 {
		t.Errorf("after that %d are delayed, %v, must be 1", n, err)
	}
	plain, published := newID(), newCarried(1)
	check(t, within(t.Context(), ledger.DB(), func(tx *sql.Tx) error {
		return ledger.Record(t.Context(), bridge.SQL(tx), append(published, driver.Entry{ID: plain}))
	}), "record")
	check(t, ledger.Touch(t.Context(), idsOfEntries(published)), "touch")
	for _, id := range []uuid.UUID{plain, published[0].ID, newID()} {
		advance(id, false)
	}
	_, err = ledger.Forget(t.Context(), append(idsOfEntries(append(e, published...)), plain))
	check(t, err, "forget")
}

// advancesOrCancels advances, cancels and claims messages at the same time: each one is claimed or
// cancelled, and never both, in either order.
func advancesOrCancels(t *testing.T, ledger driver.Ledger, of CarriedInspector, conflict func(error) bool) {
	t.Helper()
	entries := delayedBy(t, ledger, make([]int, 40)...)
	ids := idsOfEntries(entries)
	cancelled, claimed := make(map[uuid.UUID]bool), make(map[uuid.UUID]bool)
	var work, advancing sync.WaitGroup
	shuffled := func() []uuid.UUID {
		mine := slices.Clone(ids)
		rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
		return mine
	}
	for range 2 {
		advancing.Go(func() {
			for _, id := range shuffled() {
				if _, err := of.Advance(t.Context(), id); err != nil {
					t.Errorf("advance: %v", err)
				}
			}
		})
	}
	advanced := make(chan struct{})
	work.Go(func() {
		for _, id := range shuffled()[:len(ids)/2] {
			done, err := cancelIn(t.Context(), ledger.DB(), conflict, func(tx *sql.Tx) (bool, error) {
				return ledger.Cancel(t.Context(), bridge.SQL(tx), id)
			})
			if err != nil {
				t.Errorf("cancel: %v", err)
			}
			cancelled[id] = done
		}
	})
	work.Go(func() {
		for last := false; ; {
			rows, _, err := ledger.Due(t.Context(), driver.DueRow{}, 5)
			var messages []driver.Carried
			if err == nil {
				messages, err = ledger.Claim(t.Context(), rows)
			}
			if err != nil {
				t.Errorf("claim: %v", err)
				return
			}
			for _, m := range messages {
				claimed[m.ID] = true
			}
			if last && len(rows) == 0 {
				return
			}
			select {
			case <-advanced:
				last = true
			default:
			}
		}
	})
	advancing.Wait()
	close(advanced)
	work.Wait()
	for _, id := range ids {
		if claimed[id] == cancelled[id] {
			t.Errorf("%s: claimed %t, cancelled %t", id, claimed[id], cancelled[id])
		}
	}
	t.Logf("of %d advanced messages %d are claimed", len(ids), len(claimed))
	_, err := ledger.Forget(t.Context(), ids)
	check(t, err, "forget")
}
