package verifier_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// However long a message waits, for its transaction or for its target, the broker
// neither loses patience with the consumer nor counts its deliveries up to a limit:
// what is set aside is a new message to it. The limit is three here, not a million.
func TestWaitingForLongUsesUpNeitherTimeoutNorDeliveryLimit(t *testing.T) {
	t.Parallel()
	broker := brokerWithConsumerTimeout(t, consumerTimeout)
	const limit, rounds = 3, 12
	if _, err := broker.Ctl(t.Context(), "set_policy", "small", ".*", fmt.Sprintf(`{"delivery-limit":%d}`, limit), "--apply-to", "queues"); err != nil {
		t.Fatal(err)
	}
	for _, classic := range []bool{false, true} {
		t.Run(fmt.Sprintf("classic=%t", classic), func(t *testing.T) {
			t.Parallel()
			waitForLong(t, broker, bridge.Topology{Queue: fmt.Sprintf("staging-%t", classic), Classic: classic}, limit, rounds)
		})
	}
}

const consumerTimeout = 8 * time.Second

func waitForLong(t *testing.T, broker *servers.RabbitMQ, topology bridge.Topology, limit, rounds int) {
	s := stage.On(t, stage.Postgres, broker.URL(), topology)
	if !topology.Classic {
		limitIsReal(t, s, limit)
	}
	queue, missing := s.Queue(topology.Queue+"-target", nil), topology.Queue+"-missing"
	full := s.Queue(topology.Queue+"-full", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	if err := s.Channel.PublishWithContext(t.Context(), "", full, false, false, amqp.Publishing{}); err != nil {
		t.Fatal(err)
	}
	options := verifier.Options{Patience: 200 * time.Millisecond, HandBack: 500 * time.Millisecond, Unroutable: time.Hour}
	v := s.Verify(options)
	began := time.Now()
	open, _ := s.Begin(stage.To(queue, "1"), stage.To(queue, "2"), stage.To(queue, "3"))
	s.Commit(stage.To(full, ""))
	s.Commit(stage.To(missing, ""))
	const waiting = 5
	s.Eventually("they were set aside many times, for longer than the timeout", func() bool {
		return v.Stats().SetAside >= int64(rounds*waiting) && time.Since(began) > consumerTimeout+consumerTimeout/2
	})
	if n := v.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions: the consumer timeout has struck", n)
	}
	t.Logf("%d times set aside in %v", v.Stats().SetAside, time.Since(began))

	// A verifier's end hands back, which may count (servertest.Features): once, or twice
	// where it is given the message again before its channel ends.
	v.Stop()
	var held []amqp.Delivery
	there := 0
	s.Eventually("all are in the waiting queue, alone or in groups", func() bool {
		d, ok, err := s.Channel.Get(topology.WaitingQueue(), false)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return there == waiting
		}
		if n, _ := d.Headers["x-delivery-count"].(int64); n > 2 {
			t.Errorf("delivered %d times", n+1)
		}
		members, err := wire.Members(d)
		if err != nil {
			t.Fatal(err)
		}
		there += len(members)
		held = append(held, d)
		return false
	})
	for _, d := range held {
		if err := d.Nack(false, true); err != nil {
			t.Fatal(err)
		}
	}

	// All of them still arrive.
	s.Queue(missing, nil)
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	v = s.Verify(options)
	s.Receive(queue, 3)
	s.Receive(missing, 1)
	s.Receive(full, 2)
	s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	if n := s.Depth(topology.DeadQueue()); n != 0 || v.Stats().DeadLettered != 0 {
		t.Errorf("%d in the dead queue", n)
	}
}

// limitIsReal shows that what is delivered too often does go to the dead queue.
func limitIsReal(t *testing.T, s *stage.Stage, limit int) {
	t.Helper()
	if err := s.Channel.PublishWithContext(t.Context(), "", s.Topology.Queue, false, false, amqp.Publishing{}); err != nil {
		t.Fatal(err)
	}
	s.WaitDepth(s.Topology.Queue, 1)
	deliveries := 0
	s.Eventually("the limit strikes", func() bool {
		d, ok, err := s.Channel.Get(s.Topology.Queue, false)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			deliveries++
			if err := d.Reject(true); err != nil { // which counts on every release
				t.Fatal(err)
			}
		}
		return s.Depth(s.Topology.DeadQueue()) == 1
	})
	s.Receive(s.Topology.DeadQueue(), 1)
	if deliveries != limit+1 {
		t.Errorf("%d deliveries with a limit of %d", deliveries, limit)
	}
}
