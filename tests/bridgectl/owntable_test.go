package bridgectl_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// For a message of an own table the tool looks only into that table.
func TestTheToolAsksTheOwnTable(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.Postgres)
	target := s.Queue("target", nil)
	_, err := s.DB.ExecContext(t.Context(), `CREATE TABLE orders (id uuid PRIMARY KEY)`)
	must(t, err)
	own, err := postgres.OpenOwnTable(t.Context(), s.DB, bridge.OwnTable{Table: "orders", Column: "id"})
	must(t, err)
	orders, err := sender.New(own, s.Broker, &sender.Options{Queue: s.Topology.Queue, Timeout: stage.Patience})
	must(t, err)
	order := func(body string, end func(*sql.Tx) error) string {
		tx, err := s.DB.BeginTx(t.Context(), nil)
		must(t, err)
		defer func() { _ = tx.Rollback() }()
		m := letter(target, body)
		m.ID = uuid.Must(uuid.NewV7())
		_, err = tx.ExecContext(t.Context(), `INSERT INTO orders (id) VALUES ($1)`, m.ID.String())
		must(t, err)
		_, err = orders.SendTx(t.Context(), bridge.SQL(tx), m)
		must(t, err)
		must(t, end(tx))
		return m.ID.String()
	}
	committed := order("committed", (*sql.Tx).Commit)
	rolledBack := order("rolled back", (*sql.Tx).Rollback)
	v := s.Verify(verifier.Options{}) // mistake: the verifier uses the ledger's own tables
	s.WaitDepth(s.Topology.DeadQueue(), 2)
	v.Stop()

	tool := s.also("BRIDGE_OWN_TABLE=orders.id")
	for id, state := range map[string]string{committed: "committed", rolledBack: "absent"} {
		var facts struct {
			Ledger struct{ Identity, State string }
		}
		tool.json(&facts, "message", id)
		if facts.Ledger.Identity != own.Identity().String() || facts.Ledger.State != state {
			t.Errorf("message %s: %+v, want %s", state, facts.Ledger, state)
		}
	}
	r := tool.run("dead", "replay", "--reason=foreign", "--yes")
	if r.Code != 1 || !strings.Contains(r.Stdout, "1 message replayed, 1 not") || !strings.Contains(r.Stdout, "no row in the ledger") {
		t.Errorf("exit code %d, it says\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if d := s.Receive(target, 1)[0]; !isLetter(d, committed, "committed") {
		t.Errorf("it came as %+v", d)
	}
	if text := tool.run("doctor").Stdout; !strings.Contains(text, "messages are judged by orders.id") || !strings.Contains(text, "the lookup waits for open transactions") {
		t.Errorf("the doctor says\n%s", text)
	}
	if text := tool.must("status"); !strings.Contains(text, own.Identity().String()) {
		t.Errorf("the status is\n%s", text)
	}
	tool.fails(1, "this ledger keeps its rows", "orphans", "list")
	tool.fails(1, "this ledger carries no messages", "carried", "list")
	s.also("BRIDGE_OWN_TABLE=orders.number").fails(1, "BRIDGE_OWN_TABLE: open own table: ", "orphans", "list")
}
