package inspection

import (
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
)

// A difference is only a time outside of the two readings of the process's clock, however long the
// query took.
func TestTheClockDifferenceLeavesOutTheTimeOfTheQuestion(t *testing.T) {
	before := time.UnixMilli(1_000_000)
	after := before.Add(10 * time.Minute) // a slow query
	for _, c := range []struct {
		theirs time.Time
		want   inspect.Level
	}{
		{before, inspect.OK},
		{before.Add(5 * time.Minute), inspect.OK},
		{after, inspect.OK},
		{before.Add(-900 * time.Millisecond), inspect.OK},
		{after.Add(900 * time.Millisecond), inspect.OK},
		{before.Add(-2 * time.Second), inspect.Warning},
		{after.Add(2 * time.Second), inspect.Warning},
		{before.Add(-59 * time.Second), inspect.Warning},
		{before.Add(-61 * time.Second), inspect.Error},
		{after.Add(2 * time.Hour), inspect.Error},
	} {
		var f Findings
		f.clock(c.theirs, before, after, "fix")
		if len(f) != 1 || f[0].Level != c.want || (f[0].Fix == "") != (c.want == inspect.OK) {
			t.Errorf("%v: %+v, must be %s", c.theirs, f, c.want)
		}
	}
}

// The fix for missing rights is the statements that grant them, ready to paste.
func TestMissingRightsAreStatements(t *testing.T) {
	var f Findings
	f.Missing(CheckStage, inspect.Warning, "verifier", []string{"SELECT ON bridge_watermark", "UPDATE ON bridge_watermark", "UPDATE (stage_at) ON bridge_ledger"})
	f.Missing(CheckRights, inspect.Error, "verifier", []string{"EXECUTE ON FUNCTION f(uuid[]) (which is not there: bridgectl migrate print)"})
	f.Missing(CheckSweep, inspect.Warning, "verifier", nil)
	for i, want := range []string{
		"GRANT SELECT, UPDATE ON bridge_watermark TO verifier;\nGRANT UPDATE (stage_at) ON bridge_ledger TO verifier;",
		"run the statement that creates FUNCTION f(uuid[]): bridgectl migrate print shows it", "",
	} {
		if f[i].Fix != want {
			t.Errorf("%s: %q, must be %q", f[i].Text, f[i].Fix, want)
		}
	}
}

func TestDueRowsAreJudgedByTheFirst(t *testing.T) {
	now := time.Now()
	for age, want := range map[time.Duration]inspect.Level{0: inspect.OK, 4 * time.Minute: inspect.OK, 6 * time.Minute: inspect.Warning} {
		var f Findings
		f.due(2, []driver.DueRow{{StageAt: now.Add(-age)}, {StageAt: now}}, now)
		if len(f) != 1 || f[0].Level != want || !strings.Contains(f[0].Text, "past their stage time: 2") {
			t.Errorf("%v: %+v, must be %s", age, f, want)
		}
	}
}

func TestAStatementIsCutBetweenCharacters(t *testing.T) {
	for _, statement := range []string{"", "SELECT 1", strings.Repeat("x", mostStatement), strings.Repeat("€", mostStatement), "a" + strings.Repeat("€", mostStatement)} {
		cut := Cut(statement)
		if !strings.HasPrefix(statement, cut) || len(cut) > mostStatement || len(cut) < min(len(statement), mostStatement-2) ||
			strings.ToValidUTF8(cut, "") != cut {
			t.Errorf("%d bytes are cut to %d", len(statement), len(cut))
		}
	}
}
