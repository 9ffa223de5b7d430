package ledgertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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
