package main

import (
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier"
)

// Names come from outside: what Prometheus takes as no label must not end the verifier, nor
// what somebody asks for at /metrics.
func TestNoNameEndsTheMetrics(t *testing.T) {
	minimal(t)
	t.Setenv("BRIDGE_QUEUE", "q\xff\x1b")
	t.Setenv("BRIDGE_AMQP_URL", "amqp://u:p@127.0.0.1:1/v%ff")
	t.Setenv("BRIDGE_AUDIT", "1")
	c, err := load(false)
	if err != nil {
		t.Fatal(err)
	}
	m := newMetrics(&worker{config: c, stopping: make(chan struct{})})
	strange := wire.Staged{Message: bridge.Message{Exchange: "\xff", RoutingKey: "\xfe"}}
	for _, reason := range append(wire.DeadReasons(), "") {
		m.Done(verifier.Event{ID: "\xff", Message: strange, Verdict: verifier.DeadLettered, Reason: reason})
	}
	m.Done(verifier.Event{ID: "\xff", Message: strange, Verdict: verifier.Forwarded})
	m.SessionEnded(errors.New("\xff"))
	m.SessionEnded(&amqp.Error{Reason: "\xff"})
	found, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	queues := 0
	for _, family := range found {
		if family.GetName() == "twoqueue_queue_info" {
			queues = len(family.GetMetric())
		}
	}
	if queues != 4 {
		t.Errorf("%d queues of 4", queues)
	}
}
