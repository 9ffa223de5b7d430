package verifier_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// The ledger's tables and the application's are in one database, and their verifiers may
// share a staging queue by mistake: neither may take the other's messages for rolled back.
func TestAnOwnTableAndTheLedgerBesideItJudgeNothingOfEachOther(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	target := s.Queue("target", nil)
	if _, err := s.DB.ExecContext(t.Context(), `CREATE TABLE orders (id uuid PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	ledger := s.Ledger
	own, err := postgres.OpenOwnTable(t.Context(), s.DB, bridge.OwnTable{Table: "orders", Column: "id"})
	if err != nil {
		t.Fatal(err)
	}
	orders, err := sender.New(own, s.Broker, &sender.Options{Queue: s.Topology.Queue, Timeout: stage.Patience})
	if err != nil {
		t.Fatal(err)
	}
	order := func(body string) string {
		tx, err := s.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		m := stage.To(target, body)
		m.ID = uuid.Must(uuid.NewV7())
		if _, err = tx.ExecContext(t.Context(), `INSERT INTO orders (id) VALUES ($1)`, m.ID.String()); err == nil {
			_, err = orders.SendTx(t.Context(), bridge.SQL(tx), m)
		}
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			t.Fatal(err)
		}
		return m.ID.String()
	}

	v := s.Verify(verifier.Options{})
	id := order("judged by nobody")
	if d := expectDead(t, s, "foreign", own.Identity().String()); d.MessageId != id {
		t.Errorf("dead message %s, want %s", d.MessageId, id)
	}
	v.Stop()
	s.Ledger = own
	// The table's rows stay, and their IDs are known to many: with one of them whoever may
	// write to the staging queue could send anything anywhere.
	if _, err := verifier.New(own, s.Broker, nil); err == nil || !strings.Contains(err.Error(), "Options.Allow") {
		t.Errorf("an own table without an allow-list: %v", err)
	}
	w := s.Verify(verifier.Options{Allow: []verifier.Allow{{RoutingKey: target}}})
	id = s.Commit(stage.To(target, "judged by nobody either"))[0].String()
	if d := expectDead(t, s, "foreign", ledger.Identity().String()); d.MessageId != id {
		t.Errorf("dead message %s, want %s", d.MessageId, id)
	}
	id = order("judged")
	if d := s.Receive(target, 1)[0]; d.MessageId != id {
		t.Errorf("message %s came, want %s", d.MessageId, id)
	}
	if n := v.Stats().Dropped + w.Stats().Dropped; n != 0 {
		t.Errorf("%d dropped", n)
	}
}
