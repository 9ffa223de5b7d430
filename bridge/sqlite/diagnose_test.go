package sqlite_test

import (
	"context"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
)

func TestAHealthyFileIsWell(t *testing.T) {
	_, ledger := newLedger(t, "")
	ledgertest.Well(t, sqlite.Inspect(ledger))
	ledgertest.ReadsCarried(t, ledger, sqlite.Inspect(ledger), nil)
}

// Each case is found by its check.
func TestDiagnose(t *testing.T) {
	for name, c := range map[string]struct {
		options    string // of the connection
		statements []string
		pool       int
		check      string
		level      inspect.Level
		says       string
	}{
		"a copy":                            {statements: []string{"UPDATE bridge_identity SET identity = '0192a0c0-0000-7000-8000-000000000001'"}, check: "ledger", level: inspect.Error, says: "identity"},
		"not a WAL":                         {statements: []string{"PRAGMA journal_mode = delete"}, check: "journal", level: inspect.Error, says: "delete"},
		"never waits":                       {options: "_pragma=synchronous(off)", check: "durability", level: inspect.Error, says: "off"},
		"does not always wait for the disk": {options: "_pragma=synchronous(normal)", check: "durability", level: inspect.Error, says: "normal"},
		"no busy_timeout":                   {statements: []string{"PRAGMA busy_timeout = 0"}, pool: 1, check: "time-outs", level: inspect.Warning, says: "0 ms"},
		"dirty reads":                       {options: "_pragma=read_uncommitted(1)", check: "isolation", level: inspect.Error, says: "read_uncommitted"},
		"one connection":                    {pool: 1, check: "connection pool", level: inspect.Error, says: "pool allows 1 connection"},
		"orphans":                           {statements: []string{"INSERT INTO bridge_ledger (id, recorded_at) VALUES ('0192a0c0-0000-7000-8000-000000000001', unixepoch() - 8 * 86400)"}, check: "orphans", level: inspect.Warning, says: "days old: 1;"},
		"long due": {statements: []string{"INSERT INTO bridge_ledger VALUES ('0192a0c0-0000-7000-8000-000000000001', unixepoch() - 600, x'00', 1000 * (unixepoch() - 600))"},
			check: "carried messages", level: inspect.Warning, says: "past their stage time: 1;"},
	} {
		t.Run(name, func(t *testing.T) {
			_, ledger := newLedger(t, c.options)
			for _, statement := range c.statements {
				_, err := ledger.DB().ExecContext(t.Context(), statement)
				must(t, err)
			}
			ledger.DB().SetMaxOpenConns(c.pool)
			ledgertest.Finds(t, sqlite.Inspect(ledger), c.check, c.level, c.says)
		})
	}
}

func TestAnOwnTableIsDiagnosed(t *testing.T) {
	_, ledger := newLedger(t, "")
	_, err := ledger.DB().ExecContext(t.Context(), "CREATE TABLE orders (id TEXT PRIMARY KEY)")
	must(t, err)
	own, err := sqlite.OpenOwnTable(t.Context(), ledger.DB(), bridge.OwnTable{Table: "orders", Column: "id"})
	must(t, err)
	ledgertest.Well(t, sqlite.InspectOwnTable(own))
	_, err = ledger.DB().ExecContext(t.Context(), "DROP TABLE orders")
	must(t, err)
	ledgertest.Finds(t, sqlite.InspectOwnTable(own), "ledger", inspect.Error, "orders")
}

type diagnoser func(context.Context) ([]inspect.Finding, error)

func (d diagnoser) Diagnose(ctx context.Context) ([]inspect.Finding, error) { return d(ctx) }

func TestAReceiversCommitsAreDiagnosed(t *testing.T) {
	for options, c := range map[string]struct {
		level inspect.Level
		says  string
	}{
		"":                            {inspect.OK, "full"},
		"_pragma=synchronous(normal)": {inspect.Error, "normal: a crash of the machine can undo a transaction whose message was acked"},
	} {
		_, ledger := newLedger(t, options) // any table will do
		ledgertest.Finds(t, diagnoser(func(ctx context.Context) ([]inspect.Finding, error) {
			return sqlite.DiagnoseInbox(ctx, ledger.DB())
		}), "durability", c.level, c.says)
	}
}
