package ledger_test

import (
	"database/sql"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/inspect/mysqlinspect"
	"github.com/twoqueue/twoqueue/bridge/inspect/postgresinspect"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// inspector asks a database about a ledger.
type inspector interface {
	inspect.Diagnoser
	inspect.Watcher
}

func inspectorOf(t *testing.T, ledger driver.Ledger) inspector {
	t.Helper()
	switch ledger := ledger.(type) {
	case *postgres.Ledger:
		return postgresinspect.New(ledger)
	case *postgres.OwnLedger:
		return postgresinspect.NewOwnTable(ledger)
	case *mysql.Ledger:
		return mysqlinspect.New(ledger)
	case *mysql.OwnLedger:
		return mysqlinspect.NewOwnTable(ledger)
	}
	t.Fatalf("%T has no inspector", ledger)
	return nil
}

// expectWell fails on any finding that is not ok.
func expectWell(t *testing.T, ledger driver.Ledger, but ...string) {
	t.Helper()
	findings, err := inspectorOf(t, ledger).Diagnose(t.Context())
	must(t, err)
	if len(findings) < 10 {
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

// expectFinding waits until the check finds it so: what a server is told it may do a
// moment later.
func expectFinding(t *testing.T, ledger driver.Ledger, check string, level inspect.Level, says string) {
	t.Helper()
	limit := time.After(servertest.Patience)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		findings, err := inspectorOf(t, ledger).Diagnose(t.Context())
		must(t, err)
		found := inspect.Finding{Text: "no such check"}
		if i := slices.IndexFunc(findings, func(f inspect.Finding) bool { return f.Check == check }); i >= 0 {
			found = findings[i]
		}
		if found.Level == level && strings.Contains(found.Text, says) {
			if level != inspect.Unknown && found.Fix == "" {
				t.Errorf("%+v has no mend", found)
			}
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s finds %+v, must be %s and say %q", check, found, level, says)
		}
	}
}

func executeAll(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}
