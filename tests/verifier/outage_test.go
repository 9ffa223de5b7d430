package verifier_test

import (
	"log/slog"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// Transactions with carried messages commit while the broker confirms nothing, and while their
// sender has never reached it.
func TestAnOutageOfTheBrokerStopsNoTransaction(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	valve, address := servertest.Through(t, s.AMQP)
	through := func(address string) *sender.Sender {
		broker, err := bridge.NewBroker(address, &bridge.BrokerOptions{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(broker.Close)
		out, err := sender.New(s.Ledger, broker, &sender.Options{
			Queue: s.Topology.Queue, Carry: sender.CarryAlways, Timeout: stage.Patience, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	cutOff := through(address)
	want := map[string]bool{}
	transact := func(sender *sender.Sender, commits bool, n int) {
		t.Helper()
		tx, err := s.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		var ids []uuid.UUID
		if ids, err = sender.SendTx(t.Context(), bridge.SQL(tx), some(queue, n)...); err != nil {
			t.Fatalf("send: %v", err)
		}
		if !commits {
			return
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		add(want, ids...)
	}
	transact(cutOff, true, 3)
	s.WaitDepth(s.Topology.Queue, 1) // as a group
	valve.HoldReplies()              // half-open: no confirm comes
	for range 20 {
		transact(cutOff, true, 2)
	}
	transact(cutOff, false, 2)
	unreachable := through("amqp://localhost:1/")
	for range 20 {
		transact(unreachable, true, 2)
	}
	transact(unreachable, false, 2)
	v := s.Verify(verifier.Options{})
	expectAll(t, s, queue, want)
	s.Eventually("all rows are gone", func() bool { return s.Rows() == 0 })
	if n := v.Stats().Restaged; n < 40 {
		t.Errorf("%d were staged from their rows, must be 40 at least", n)
	}
	valve.Release()
	clear(want)
	transact(cutOff, true, 2)
	expectAll(t, s, queue, want)
}
