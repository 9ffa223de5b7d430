package bridgectl_test

import (
	"net/http"
	"net/url"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// brokenBroker is a misconfigured broker and the doctor's findings about it.
type brokenBroker struct {
	name   string
	env    []string
	before func(w *world) // runs before the queues are declared
	after  func(w *world) // runs after it; nil: the queues are not declared
	finds  []found
}

type found struct {
	check string
	level inspect.Level
	words string
}

// quorum returns the staging queue's arguments with changes; a nil value removes an argument.
func quorum(changes amqp.Table) amqp.Table {
	args := bridge.Topology{Queue: "twoqueue"}.Queues()[0].Arguments
	for name, value := range changes {
		if value == nil {
			delete(args, name)
		} else {
			args[name] = value
		}
	}
	return args
}

func classic(changes amqp.Table) amqp.Table {
	args := bridge.Topology{Queue: "twoqueue", Classic: true}.Queues()[0].Arguments
	for name, value := range changes {
		args[name] = value
	}
	return args
}

func nothing(*world) {}

func staged(args amqp.Table) func(*world) {
	return func(w *world) { w.queue("twoqueue", args) }
}

var brokenBrokers = []brokenBroker{
	{"no queues", nil, nothing, nil, []found{
		{"queue twoqueue", inspect.Error, "missing"},
		{"queue twoqueue.dead", inspect.Error, "missing"},
	}},
	{"an exclusive queue", nil, func(w *world) {
		if _, err := w.channel().QueueDeclare("twoqueue", false, false, true, false, nil); err != nil {
			w.t.Fatal(err)
		}
	}, nil, []found{{"queue twoqueue", inspect.Error, "exclusive"}}},
	{"a classic queue", nil, staged(classic(nil)), nil, []found{{"arguments of twoqueue", inspect.Error, "x-queue-type is classic, must be quorum"}}},
	{"a transient queue with priorities and no dead-letter exchange", []string{"BRIDGE_CLASSIC=true"}, func(w *world) {
		args := amqp.Table{"x-queue-type": "classic", "x-max-priority": 5}
		if _, err := w.channel().QueueDeclare("twoqueue", false, false, false, false, args); err != nil {
			w.t.Fatal(err)
		}
	}, nil, []found{
		{"arguments of twoqueue", inspect.Error, "not durable"},
		{"arguments of twoqueue", inspect.Error, `x-dead-letter-exchange is not set, must be "" (the default exchange): messages that the broker gives up`},
		{"arguments of twoqueue", inspect.Error, "x-max-priority"},
	}},
	{"arguments that lose messages", nil, staged(quorum(amqp.Table{
		"x-message-ttl": 60000, "x-expires": 6000000, "x-max-length": 10, "x-max-length-bytes": 1000, "x-delivery-limit": nil,
		"x-dead-letter-routing-key": "elsewhere", "x-dead-letter-strategy": "at-most-once", "x-single-active-consumer": true,
	})), nil, []found{
		{"arguments of twoqueue", inspect.Error, "x-message-ttl is set to 60000"},
		{"arguments of twoqueue", inspect.Error, "x-expires is set"},
		{"arguments of twoqueue", inspect.Error, "x-max-length is set to 10"},
		{"arguments of twoqueue", inspect.Error, "x-max-length-bytes is set to 1000"},
		{"arguments of twoqueue", inspect.Error, "x-delivery-limit is not set, must be 1000000"},
		{"arguments of twoqueue", inspect.Error, "x-dead-letter-routing-key is elsewhere"},
		{"arguments of twoqueue", inspect.Error, "x-dead-letter-strategy is at-most-once"},
		{"arguments of twoqueue", inspect.Error, "only one verifier"},
	}},
	{"a small delivery limit, without the management API", []string{"BRIDGE_MANAGEMENT_URL="}, staged(quorum(amqp.Table{"x-delivery-limit": 20})), nil,
		[]found{{"arguments of twoqueue", inspect.Error, "x-delivery-limit differs"}}},
	{"an argument of which only the broker knows", nil, staged(quorum(amqp.Table{"x-queue-leader-locator": "balanced"})), nil,
		[]found{{"arguments of twoqueue", inspect.Error, "x-queue-leader-locator differs, so a verifier refuses the queue"}}},
	{"limits of the dead and the audit queue", []string{"BRIDGE_AUDIT=100"}, func(w *world) {
		w.queue("twoqueue.dead", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1000000, "x-max-length": 1})
		w.queue("twoqueue.dropped", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1000000, "x-max-length": 5, "x-overflow": "drop-head"})
	}, nil, []found{
		{"arguments of twoqueue.dead", inspect.Error, "x-max-length is set"},
		{"arguments of twoqueue.dropped", inspect.Error, "x-max-length is 5, must be 100"},
	}},

	{"a consumer timeout below the hand-back", nil, staged(quorum(amqp.Table{"x-consumer-timeout": 60000})), nil,
		[]found{{"consumer timeout", inspect.Error, "it is 1m on twoqueue, and verifiers hold messages for up to 15m10s"}}},
	{"a consumer timeout above the hand-back", []string{"BRIDGE_HAND_BACK=30s"}, staged(quorum(amqp.Table{"x-consumer-timeout": 60000})), nil,
		[]found{{"consumer timeout", inspect.OK, "it is 1m on twoqueue"}}},

	{"policies that lose messages", []string{"BRIDGE_AUDIT=100"}, func(w *world) {
		w.policy("staging", "^twoqueue$", map[string]any{"message-ttl": 1000, "expires": 1000000, "max-length": 10, "delivery-limit": 20})
		w.policy("waiting", "waiting", map[string]any{"message-ttl": 1000})
		w.policy("dead", "dead", map[string]any{"max-length-bytes": 10, "delivery-limit": 20, "dead-letter-exchange": "amq.fanout"})
		w.policy("dropped", "dropped", map[string]any{"expires": 1000000})
	}, nothing, []found{
		{"policies of twoqueue", inspect.Error, "message-ttl is 1s"},
		{"policies of twoqueue", inspect.Error, "expires is 16m40s"},
		{"policies of twoqueue", inspect.Warning, "max-length is 10, and a full queue refuses"},
		{"policies of twoqueue", inspect.Error, "delivery-limit is 20"},
		{"policies of twoqueue.waiting", inspect.Error, "message-ttl"},
		{"policies of twoqueue.dead", inspect.Error, "max-length-bytes is 10, and a full queue drops"},
		{"policies of twoqueue.dead", inspect.Error, "are dropped"},
		{"policies of twoqueue.dead", inspect.Warning, `dead-letter-exchange is "amq.fanout"`},
		{"policies of twoqueue.dropped", inspect.Error, "expires"},
	}},
	{"an operator policy, and a dead queue that refuses", nil, func(w *world) {
		w.operatorPolicy("ops", "^twoqueue$", map[string]any{"message-ttl": 5})
		w.policy("dead", "dead", map[string]any{"max-length": 10, "overflow": "reject-publish"})
	}, nothing, []found{
		{"policies of twoqueue", inspect.Error, "message-ttl is 5ms"},
		{"policies of twoqueue.dead", inspect.Warning, "max-length is 10, and a full queue refuses"},
	}},
	{"policies that turn reject-publish off", nil, func(w *world) {
		w.policy("drop", "^twoqueue$", map[string]any{"max-length": 1, "overflow": "drop-head"})
		w.policy("dead letters", "waiting", map[string]any{"overflow": "drop-head"})
	}, func(w *world) {
		for range 3 { // confirmed, although the queue's x-overflow is reject-publish
			w.publish("twoqueue")
		}
	}, []found{
		{"policies of twoqueue", inspect.Error, "max-length is 1, and a full queue drops the oldest messages: committed ones go to the dead queue"},
		{"policies of twoqueue", inspect.Error, "overflow is drop-head, which prevails"},
		{"policies of twoqueue.waiting", inspect.Error, "overflow is drop-head, which prevails"},
		{"dead messages", inspect.Warning, "2 messages are ready in twoqueue.dead"},
	}},
	{"classic queues, which a crash of the host empties, and a policy for their length, which drops", []string{"BRIDGE_CLASSIC=true"}, func(w *world) {
		w.policy("length", "^twoqueue$", map[string]any{"max-length": 10})
	}, nothing, []found{
		{"classic queues", inspect.Warning, "does not fsync"},
		{"policies of twoqueue", inspect.Error, "max-length is 10, and a full queue drops"},
	}},

	{"a fanout in the place of the senders' exchange", []string{"BRIDGE_EXCHANGE=twoqueue.stage"}, func(w *world) { w.exchange("fanout") }, nil,
		[]found{{"exchange twoqueue.stage", inspect.Error, "not a durable direct exchange"}}},
	{"no senders' exchange", []string{"BRIDGE_EXCHANGE=twoqueue.stage"}, nothing, func(w *world) {
		must(w.t, w.channel().ExchangeDelete("twoqueue.stage", false, false))
	}, []found{{"exchange twoqueue.stage", inspect.Error, "is missing"}}},
	{"wrong bindings of the senders' exchange", []string{"BRIDGE_EXCHANGE=twoqueue.stage"}, nothing, func(w *world) {
		must(w.t, w.channel().QueueUnbind("twoqueue", "twoqueue", "twoqueue.stage", nil))
		must(w.t, w.channel().QueueBind("twoqueue.dead", "d", "twoqueue.stage", false, nil))
	}, []found{
		{"exchange twoqueue.stage", inspect.OK, "direct"},
		{"bindings of twoqueue.stage", inspect.Error, `queue "twoqueue" is not bound`},
		{"bindings of twoqueue.stage", inspect.Warning, `queue "twoqueue.dead" is bound to it with key "d"`},
	}},
	{"an alternate exchange of the senders' exchange", []string{"BRIDGE_EXCHANGE=twoqueue.stage"}, func(w *world) {
		w.manage(http.MethodPut, "/policies/"+url.PathEscape(w.vhost())+"/alternate", map[string]any{
			"pattern": "stage", "definition": map[string]any{"alternate-exchange": "amq.fanout"}, "apply-to": "exchanges"})
	}, nothing, []found{{"policies of twoqueue.stage", inspect.Error, `alternate-exchange is "amq.fanout"`}}},

	{"messages and no verifier", nil, nil, func(w *world) { w.publish("twoqueue"); w.publish("twoqueue.dead") }, []found{
		{"verifiers", inspect.Warning, "no verifier consumes twoqueue"},
		{"verifiers", inspect.Warning, "; 1 message is ready there and in the waiting queue"},
		{"dead messages", inspect.Warning, "1 message is ready in twoqueue.dead"},
		{"allow-list", inspect.Unknown, "BRIDGE_ALLOW is not set here"},
	}},
	{"missing targets, and few connections", []string{"BRIDGE_ALLOW=:emails,orders:*,*:*"}, nil, func(w *world) { servertest.LimitConnections(w.t, w.url, "vhost", 12) }, []found{
		{"targets", inspect.Warning, `queue "emails", which BRIDGE_ALLOW names, does not exist`},
		{"targets", inspect.Warning, `exchange "orders", which BRIDGE_ALLOW names, does not exist`},
		{"connection limit", inspect.Warning, "the virtual host may have 12 connections"},
	}},
	{"messages that wait without a consumer", nil, nil, func(w *world) { w.publish("twoqueue.waiting"); w.consume("twoqueue") },
		[]found{{"verifiers", inspect.Warning, "no verifier consumes twoqueue.waiting; 1 message is ready there"}}},
}
