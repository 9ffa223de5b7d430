package verifier_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// If the queues exist, sender and verifier need only the broker rights that package bridge
// documents: they suffice to forward, drop, set aside and dead-letter.
func TestTheDocumentedRightsOfTheBrokerAreEnough(t *testing.T) {
	t.Parallel()
	for exchange, write := range map[string]string{"": `^amq\.default$`, "staging.stage": `^staging\.stage$`} {
		t.Run("exchange "+exchange, func(t *testing.T) {
			t.Parallel()
			rightsAreEnough(t, exchange, write)
		})
	}
}

func rightsAreEnough(t *testing.T, exchange, write string) {
	admin := servertest.Vhost(t)
	s := stage.On(t, stage.Postgres, admin, bridge.Topology{Queue: "staging", Exchange: exchange, OrderedShards: 1})
	queue := s.Queue("target", nil)
	as := func(configure, write, read string) *bridge.Broker {
		t.Helper()
		return dial(t, servertest.User(t, admin, configure, write, read))
	}
	var err error
	s.Sender, err = sender.New(s.Ledger, as("^$", write, "^$"),
		&sender.Options{Queue: s.Topology.Queue, Exchange: exchange, OrderedShards: 1, Timeout: stage.Patience, Carry: sender.CarryNever})
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

// A sender whose login may write only to the bridge's exchange can stage, and reaches no other
// queue.
func TestARightToTheExchangeReachesTheStagingQueuesOnly(t *testing.T) {
	t.Parallel()
	admin := servertest.Vhost(t)
	topology := bridge.Topology{Queue: "staging", Exchange: "staging.stage", OrderedShards: 2, Audit: 10}
	s := stage.On(t, stage.Postgres, admin, topology)
	s.Queue("target", nil)
	broker := dial(t, servertest.User(t, admin, "^$", `^staging\.stage$`, "^$"))
	for _, queue := range append(topology.BoundQueues(), "staging.waiting", "staging.dead", "staging.dropped", "target") {
		for _, exchange := range []string{topology.Exchange, ""} {
			staged := exchange != "" && slices.Contains(topology.BoundQueues(), queue)
			err := broker.Publish(t.Context(), []bridge.Outgoing{{
				Target:     bridge.Target{Exchange: exchange, RoutingKey: queue},
				Publishing: amqp.Publishing{MessageId: uuid.NewString()},
			}})
			refusal := bridge.Refusal(err)
			switch {
			case staged && err != nil,
				!staged && exchange != "" && !errors.Is(err, bridge.ErrReturned),
				exchange == "" && (refusal == nil || refusal.Code != amqp.AccessRefused || bridge.Retryable(err)):
				t.Errorf("to %s by exchange %q: %v", queue, exchange, err)
			}
			want := 0
			if slices.Contains(topology.BoundQueues(), queue) {
				want = 1
			}
			if n := s.Depth(queue); n != want {
				t.Errorf("%d messages in %s after a publication by exchange %q", n, queue, exchange)
			}
		}
	}
}

// If the binding or the exchange is missing, no message is lost: the sender gets an error, and
// the verifier's next session declares them again.
func TestAMissingBindingIsAnErrorOfTheSender(t *testing.T) {
	t.Parallel()
	s := stage.On(t, stage.Postgres, servertest.Vhost(t), bridge.Topology{Queue: "staging", Exchange: "staging.stage"})
	queue := s.Queue("target", nil)
	send := func() error {
		tx, err := s.DB.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		_, err = s.Sender.SendTx(t.Context(), bridge.SQL(tx), stage.To(queue, "m"))
		return err
	}
	if err := s.Channel.QueueUnbind("staging", "staging", "staging.stage", nil); err != nil {
		t.Fatal(err)
	}
	if err := send(); !errors.Is(err, bridge.ErrReturned) || bridge.Retryable(err) || !strings.Contains(err.Error(), `exchange "staging.stage" has no binding to a queue "staging"`) {
		t.Errorf("without the binding: %v", err)
	}
	if err := s.Channel.ExchangeDelete("staging.stage", false, false); err != nil {
		t.Fatal(err)
	}
	if err := send(); bridge.Refusal(err) == nil || bridge.Retryable(err) {
		t.Errorf("without the exchange: %v", err)
	}
	s.Verify(verifier.Options{})
	ids := s.Commit(stage.To(queue, "m"))
	if d := s.Receive(queue, 1); d[0].MessageId != ids[0].String() {
		t.Errorf("received %s", d[0].MessageId)
	}
}
