package main

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

// The stand-in answers as expected what it can be asked, and nothing is left in it.
func TestTheStandInAnswersAsExpected(t *testing.T) {
	server := servertest.SQLServerStandIn(t, nil)
	address := servertest.SQLServerDB(t, server.URL("master"), true)
	for range 2 { // the second time, because the first has dropped its tables
		var out strings.Builder
		different, err := ask(t.Context(), &out, address)
		if err != nil || different > 0 || strings.Count(out.String(), "as expected") != len(questions)-2 ||
			strings.Count(out.String(), "NOT ASKED") != 2 || !strings.Contains(out.String(), "optimized locking: ok") {
			t.Fatalf("%d are different, %v:\n%s", different, err, out.String())
		}
	}
}

func TestAServerThatDoesNotWaitIsDifferent(t *testing.T) {
	server := servertest.SQLServerStandIn(t, &tds.Options{Babelfish: true})
	var out strings.Builder
	different, err := ask(t.Context(), &out, servertest.SQLServerDB(t, server.URL("master"), true))
	if err != nil || different == 0 || !strings.Contains(out.String(), "got:      rolled back") {
		t.Errorf("%d are different, %v:\n%s", different, err, out.String())
	}
}

func TestADatabaseInUseIsLeftAlone(t *testing.T) {
	server := servertest.SQLServerStandIn(t, nil)
	address := servertest.SQLServerDB(t, server.URL("master"), true)
	db, err := sql.Open("sqlserver", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	w := world{db: db}
	if err := w.set(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t.Context(), new(strings.Builder), address); err == nil || !strings.Contains(err.Error(), "without") {
		t.Errorf("ask: %v", err)
	}
	if err := w.ledger.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestThePlansOperatorsAreRead(t *testing.T) {
	found, err := operators(`<ShowPlanXML><RelOp PhysicalOp="Nested Loops"><NestedLoops>
<RelOp PhysicalOp="Clustered Index Seek"><IndexScan><Object Table="[bridge_ledger]" Index="[k]"/></IndexScan></RelOp>
<RelOp PhysicalOp="Table Scan"><TableScan><Object Table="[bridge_identity]"/></TableScan></RelOp></NestedLoops></RelOp></ShowPlanXML>`)
	want := []operator{{"Nested Loops", ""}, {"Clustered Index Seek", "bridge_ledger"}, {"Table Scan", "bridge_identity"}}
	if err != nil || len(found) != 3 || found[0] != want[0] || found[1] != want[1] || found[2] != want[2] {
		t.Errorf("%v, %v, must be %v", found, err, want)
	}
}
