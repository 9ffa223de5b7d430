package ledger_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
)

// inspector reads a ledger's state from its database.
type inspector interface {
	inspect.Diagnoser
	inspect.Watcher
	inspect.CarriedReader
	inspect.Advancer
}

func inspectorOf(t *testing.T, ledger driver.Ledger) inspector {
	t.Helper()
	switch ledger := ledger.(type) {
	case *postgres.Ledger:
		return postgres.Inspect(ledger)
	case *postgres.OwnLedger:
		return postgres.InspectOwnTable(ledger)
	case *mysql.Ledger:
		return mysql.Inspect(ledger)
	case *mysql.OwnLedger:
		return mysql.InspectOwnTable(ledger)
	}
	t.Fatalf("%T has no inspector", ledger)
	return nil
}

// fixRights runs the fixes of the findings about rights. Afterwards no check may find a
// fault, except the checks in but.
func fixRights(t *testing.T, admin *sql.DB, of inspector, but ...string) {
	t.Helper()
	findings, err := of.Diagnose(t.Context())
	must(t, err)
	for _, f := range findings {
		if strings.HasPrefix(f.Check, "rights ") && f.Fix != "" {
			executeAll(t, admin, strings.Split(f.Fix, "\n")...)
		}
	}
	ledgertest.Well(t, of, but...)
}

func executeAll(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}
