package verifier_test

import (
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// What package bridge says that sender and verifier need of the broker, where the queues are
// there already, is enough: to forward, drop, set aside and dead-letter.
func TestTheDocumentedRightsOfTheBrokerAreEnough(t *testing.T) {
	t.Parallel()
	admin := servertest.Vhost(t)
	s := stage.On(t, stage.Postgres, admin, bridge.Topology{Queue: "staging", OrderedShards: 1})
	queue := s.Queue("target", nil)
	as := func(configure, write, read string) *bridge.Broker {
		t.Helper()
		return dial(t, servertest.User(t, admin, configure, write, read))
	}
	var err error
	s.Sender, err = sender.New(s.Ledger, as("^$", `^amq\.default$`, "^$"),
		&sender.Options{Queue: s.Topology.Queue, OrderedShards: 1, Timeout: stage.Patience})
	if err != nil {
		t.Fatal(err)
	}
	s.Broker = as("^$", `^amq\.default$`, `^staging(\.waiting|\.ordered\..*)?$`)
	v := s.Verify(verifier.Options{Unroutable: 1})

	open, _ := s.Begin(stage.To(queue, "later"))
	s.Commit(stage.To(queue, "committed"))
	keyed := stage.To(queue, "in order")
	keyed.OrderKey = "key"
	s.Commit(keyed)
	s.RollBack(stage.To(queue, "rolled back"))
	s.Commit(stage.To("nowhere", "dead"))

	got := make(map[string]bool)
	for _, d := range s.Receive(queue, 2) {
		got[string(d.Body)] = true
	}
	if !got["committed"] || !got["in order"] {
		t.Errorf("received %v", got)
	}
	expectDead(t, s, "unroutable", "nowhere")
	s.Eventually("the open one's message is set aside", func() bool { return v.Stats().SetAside > 0 })
	s.Eventually("the rolled-back one is dropped", func() bool { return v.Stats().Dropped == 1 })
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	if d := s.Receive(queue, 1); string(d[0].Body) != "later" {
		t.Errorf("received %q", d[0].Body)
	}
	if n := v.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions", n)
	}
}
