package ledgertest

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
)

// Well fails on any finding that is not ok, but for those of these checks, on one that is not
// whole or is told twice, and on too few.
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
			t.Errorf("%s is told twice", f.Check)
		}
	}
}

// statisticsPause is longer than InnoDB leaves its tables of transactions and locks as they are:
// it renews them only if nobody has read them for 100 ms.
const statisticsPause = 200 * time.Millisecond

// Finds waits until the check finds it so: what a server is told it may do a moment later.
func Finds(t *testing.T, of inspect.Diagnoser, what string, level inspect.Level, says string) {
	t.Helper()
	var found inspect.Finding
	eventuallySaying(t, statisticsPause, func() string {
		return fmt.Sprintf("%s finds %+v, must be %s and say %q", what, found, level, says)
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
		t.Errorf("%+v has no mend", found)
	}
}

// ReadsCarried shows that a CarriedReader of the ledger sees the rows that carry messages, and only
// committed ones, whether they are due or not. The ledger must be empty.
func ReadsCarried(t *testing.T, ledger driver.Ledger, of inspect.CarriedReader) {
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
	delayed := newUnpublished(3)
	for i := range delayed {
		delayed[i].NotBefore = time.Now().Add(time.Duration(3-i) * time.Hour)
	}
	check(t, record(delayed...).Commit(), "commit")
	if rows, err = of.DelayedRows(t.Context(), 2); err != nil || len(rows) != 2 || rows[0] != *row(delayed[2].ID) || rows[1] != *row(delayed[1].ID) {
		t.Errorf("delayed are %+v, %v", rows, err)
	}
	_, err = ledger.Forget(t.Context(), idsOfEntries(delayed))
	check(t, err, "forget")
	if rows, err = of.DelayedRows(t.Context(), 2); err != nil || len(rows) != 0 {
		t.Errorf("delayed are %+v, %v, and none is left", rows, err)
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
}
