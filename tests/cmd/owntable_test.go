package cmd_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
)

func TestAWorkerJudgesByAnOwnTable(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	target := s.Queue("target", nil)
	if _, err := s.DB.ExecContext(t.Context(), `CREATE TABLE orders (id uuid PRIMARY KEY, note text)`); err != nil {
		t.Fatal(err)
	}
	own, err := postgres.OpenOwnTable(t.Context(), s.DB, bridge.OwnTable{Table: "orders", Column: "id"})
	if err != nil {
		t.Fatal(err)
	}
	orders, err := sender.New(own, s.Broker, &sender.Options{Queue: s.Topology.Queue, Timeout: stage.Patience})
	if err != nil {
		t.Fatal(err)
	}
	place := func(commit bool) string {
		t.Helper()
		tx, err := s.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		m := stage.To(target, "order")
		m.ID = uuid.Must(uuid.NewV7())
		if _, err = tx.ExecContext(t.Context(), `INSERT INTO orders (id) VALUES ($1)`, m.ID.String()); err == nil {
			_, err = orders.SendTx(t.Context(), bridge.SQL(tx), m)
		}
		if err == nil && commit {
			err = tx.Commit()
		}
		if err != nil {
			t.Fatal(err)
		}
		return m.ID.String()
	}
	place(false)
	id := place(true)

	start(t, "verifier", "BRIDGE_DATABASE_URL="+s.DatabaseURL, "BRIDGE_AMQP_URL="+s.AMQP, "BRIDGE_QUEUE="+s.Topology.Queue,
		"BRIDGE_OWN_TABLE=orders.id", "BRIDGE_ALLOW=:target")
	if d := s.Receive(target, 1)[0]; d.MessageId != id {
		t.Errorf("message %s came, want %s", d.MessageId, id)
	}
	s.WaitEmpty(s.Topology.Queue)
	if n := s.Depth(target) + s.Depth(s.Topology.DeadQueue()); n != 0 {
		t.Errorf("%d messages too many", n)
	}

	for _, name := range []string{"orders.note", "orders.number", "nowhere.id"} {
		p := start(t, "verifier", "BRIDGE_DATABASE_URL="+s.DatabaseURL, "BRIDGE_AMQP_URL="+s.AMQP, "BRIDGE_OWN_TABLE="+name, "BRIDGE_ALLOW=:target")
		if code := p.Await(); code != 2 || !strings.Contains(p.Stderr.String(), "verifier: BRIDGE_OWN_TABLE: open own table: ") {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
}

// Without an allow-list the worker says at every start that it is open.
func TestAWorkerSaysThatItsAllowListIsOpen(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.SQLite)
	const words = "every target is allowed"
	for _, allow := range [][]string{nil, {"BRIDGE_ALLOW=:target"}, {"BRIDGE_ALLOW=*:*"}} {
		p := verify(t, s, allow...)
		p.Stop()
		if said := strings.Contains(p.Stderr.String(), words); said != (allow == nil) {
			t.Errorf("with %q it says that %s: %t", allow, words, said)
		}
	}
}
