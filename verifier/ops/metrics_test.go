package ops

import (
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier"
)

// Names come from outside: a name that Prometheus accepts as no label must end neither the verifier
// nor a request for /metrics.
func TestNoNameEndsTheMetrics(t *testing.T) {
	m := monitor(t, &verifier.Options{Topology: bridge.Topology{Queue: "q\xff\x1b", Audit: 1}}, &Options{VHost: "v\xff"})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	strange := wire.Staged{Message: bridge.Message{Exchange: "\xff", RoutingKey: "\xfe"}}
	for _, reason := range append(wire.DeadReasons(), "") {
		m.Done(verifier.Event{ID: "\xff", Message: strange, Verdict: verifier.DeadLettered, Reason: reason})
	}
	m.Done(verifier.Event{ID: "\xff", Message: strange, Verdict: verifier.Forwarded})
	m.SessionEnded(errors.New("\xff"))
	m.SessionEnded(&amqp.Error{Reason: "\xff"})
	found, err := registry.Gather()
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

// Alerts query the broker for each queue that the worker names.
func TestTheMetricsNameEachQueueOfTheWorker(t *testing.T) {
	want := `
# HELP twoqueue_queue_info 1 for each of the verifier's own queues, by virtual host and name as the broker has them, and role.
# TYPE twoqueue_queue_info gauge
`
	topology := bridge.Topology{Queue: "q", OrderedShards: 2, Audit: 1}
	for queue, role := range map[string]string{
		"q": "staging", topology.WaitingQueue(): "waiting", topology.DeadQueue(): "dead", topology.AuditQueue(): "audit",
		topology.OrderedQueues()[0]: "ordered", topology.OrderedQueues()[1]: "ordered",
	} {
		want += `twoqueue_queue_info{queue="` + queue + `",role="` + role + `",vhost="shop"} 1` + "\n"
	}
	if err := testutil.CollectAndCompare(queueInfo("shop", topology), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
