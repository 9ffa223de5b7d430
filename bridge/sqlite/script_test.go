package sqlite_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
)

// Version 3 makes the table of the ledger anew.
func TestAPrintedScriptThatRunsAgainKeepsAllRows(t *testing.T) {
	_, ledger := newLedger(t, "")
	var script strings.Builder
	must(t, migrate.Print(&script, migrate.SQLite, migrate.LedgerPart, 0))

	entries := []driver.Entry{{ID: newID()}, {ID: newID(), Message: []byte("carried"), Unpublished: true}}
	tx, err := ledger.DB().BeginTx(t.Context(), nil)
	must(t, err)
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), entries))
	must(t, tx.Commit())

	for range 2 {
		_, err := ledger.DB().ExecContext(t.Context(), script.String())
		must(t, err)
		found, _, err := ledger.Committed(t.Context(), []uuid.UUID{entries[0].ID, entries[1].ID})
		must(t, err)
		if len(found) != len(entries) {
			t.Fatalf("rows are left: %v", found)
		}
	}
	due, _, err := ledger.Due(t.Context(), 0, 10)
	must(t, err)
	messages, err := ledger.Claim(t.Context(), due)
	must(t, err)
	if len(messages) != 1 || messages[0].ID != entries[1].ID || string(messages[0].Message) != "carried" || !due[0].Unpublished() {
		t.Errorf("due are %v, claimed are %v", due, messages)
	}
}
