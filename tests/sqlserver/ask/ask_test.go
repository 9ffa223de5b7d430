package main

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

// notOfTheStandIn are parts of the texts of questions that the stand-in cannot answer.
var notOfTheStandIn = []string{"offline", "VIEW SERVER STATE", "on a clustered table", "waits for the log", "After it has waited", "scan a table", "million rows"}

// The stand-in gives the expected answers, and nothing is left in its database.
func TestTheStandInAnswersAsExpected(t *testing.T) {
	server := servertest.SQLServerStandIn(t, nil)
	address := servertest.SQLServerDB(t, server.URL("master"), true)
	var out strings.Builder
	different, err := ask(t.Context(), &out, address)
	if err != nil || different > 0 || !strings.Contains(out.String(), "| # | question | expected | locking | versioned |\n") {
		t.Fatalf("%d are different, %v:\n%s", different, err, out.String())
	}
	lines := strings.Split(out.String(), "\n")[2:]
	for i, q := range questions {
		isNotOf := func(part string) bool { return strings.Contains(q.text, part) }
		switch asked := !slices.ContainsFunc(notOfTheStandIn, isNotOf); {
		case asked == strings.Contains(lines[i], "NOT ASKED"):
			t.Error(lines[i])
		case asked && q.want != "" && strings.Count(lines[i], "| as expected ") != 2:
			t.Error(lines[i])
		}
	}
	// The modes are restored and the tables dropped, so ask can run again.
	modes, _, err := modesOf(t.Context(), address)
	if err != nil || len(modes) != 2 {
		t.Errorf("again: %v, %v", modes, err)
	}
	db, err := sql.Open("sqlserver", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if now, err := modeOf(t.Context(), db); err != nil || !now.snapshot {
		t.Errorf("READ_COMMITTED_SNAPSHOT is not as it was: %v", err)
	}
}

func TestAServerThatDoesNotWaitIsDifferent(t *testing.T) {
	server := servertest.SQLServerStandIn(t, &tds.Options{Babelfish: true})
	all := questions
	defer func() { questions = all }()
	questions = slices.DeleteFunc(slices.Clone(all), func(q question) bool { return q.text != "Does a settle wait for an open transaction?" })
	var out strings.Builder
	different, err := ask(t.Context(), &out, servertest.SQLServerDB(t, server.URL("master"), true))
	if err != nil || different == 0 || !strings.Contains(out.String(), "DIFFERENT: rolled back") {
		t.Errorf("%d are different, %v:\n%s", different, err, out.String())
	}
}

func TestAModeThatFailsKeepsTheAnswersOfTheOthers(t *testing.T) {
	server := servertest.SQLServerStandIn(t, nil)
	all := questions
	defer func() { questions = all }()
	questions = []question{{text: "Is this asked?", want: "yes", ask: func(context.Context, *world) (string, error) {
		server.Deny("CREATE TABLE") // to the next mode
		return "yes", nil
	}}}
	var out strings.Builder
	different, err := ask(t.Context(), &out, servertest.SQLServerDB(t, server.URL("master"), true))
	if err != nil || different != 1 || !strings.Contains(out.String(), "| 1 | Is this asked? | yes | as expected |\n") || !strings.Contains(out.String(), "Not asked to the end: versioned: ") {
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
