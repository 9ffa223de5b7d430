package verifier_test

import (
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestAParkedMessageThatTheBrokerRefusesStopsNoOther(t *testing.T) {
	t.Parallel()
	broker := servertest.StartRabbitMQ(t, nil)
	limit := func(bytes int) {
		if err := broker.SetMaxMessageSize(t.Context(), bytes); err != nil {
			t.Fatal(err)
		}
	}
	limit(66_000)
	s := stage.On(t, stage.Postgres, broker.URL(), bridge.Topology{Queue: "staging"})
	queue := s.Queue("target", nil)
	outbox := parkingSender(t, s, nil, sender.ParkAlways)
	good, large := map[string]bool{}, map[string]bool{}
	for i := range 300 {
		for _, id := range transact(t, s, outbox, true, queue, 2) {
			good[id.String()] = true
		}
		if i%100 == 50 {
			tx, err := s.DB.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			ids, err := outbox.SendTx(t.Context(), bridge.SQL(tx), stage.To(queue, strings.Repeat("x", 70_000)))
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			large[ids[0].String()] = true
		}
	}
	v := s.Verify(verifier.Options{})
	expectAll(t, s, queue, good)
	s.Eventually("only the refused ones are parked", func() bool { return count(t, s, "bridge_parked") == len(large) })
	if n := v.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions", n)
	}
	limit(100_000)
	expectAll(t, s, queue, large)
	s.Eventually("nothing is parked", func() bool { return count(t, s, "bridge_parked") == 0 })
}
