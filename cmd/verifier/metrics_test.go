package main

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// Alerts ask the broker about each queue that the worker names.
func TestTheMetricsNameEachQueueOfTheWorker(t *testing.T) {
	c := config{Queue: "q", OrderedShards: 2, Audit: 1}
	c.AMQP.URL = amqp091.URI{Scheme: "amqp", Host: "mq", Port: 5672, Vhost: "shop"}.String()
	want := `
# HELP twoqueue_queue_info 1 for each of the verifier's own queues, by virtual host and name as the broker has them, and role.
# TYPE twoqueue_queue_info gauge
`
	topology := bridge.Topology{Queue: "q", OrderedShards: 2}
	for queue, role := range map[string]string{
		"q": "staging", topology.WaitingQueue(): "waiting", topology.DeadQueue(): "dead", topology.AuditQueue(): "audit",
		topology.OrderedQueues()[0]: "ordered", topology.OrderedQueues()[1]: "ordered",
	} {
		want += `twoqueue_queue_info{queue="` + queue + `",role="` + role + `",vhost="shop"} 1` + "\n"
	}
	if err := testutil.CollectAndCompare(queueInfo(c), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
