package bridgectl_test

import (
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
)

// A misfit is something wrong with a broker, and what the doctor says about it.
type misfit struct {
	name   string
	env    []string
	before func(w *world) // before the queues are declared
	after  func(w *world) // after it; nil: they are not declared
	check  string
	level  inspect.Level
	words  string
}

// quorum are the staging queue's arguments, with changes; a nil value takes one out.
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

func policed(pattern string, definition map[string]any) func(*world) {
	return func(w *world) { w.policy("theirs", pattern, definition) }
}

var misfits = []misfit{
	{"no queues", nil, nothing, nil, "queue twoqueue", inspect.Error, "missing"},
	{"no dead queue", nil, staged(quorum(nil)), nil, "queue twoqueue.dead", inspect.Error, "missing"},
	{"an exclusive queue", nil, func(w *world) {
		if _, err := w.channel().QueueDeclare("twoqueue", false, false, true, false, nil); err != nil {
			w.t.Fatal(err)
		}
	}, nil, "queue twoqueue", inspect.Error, "exclusive"},

	{"a classic queue", nil, staged(classic(nil)), nil, "arguments of twoqueue", inspect.Error, "x-queue-type is classic, must be quorum"},
	{"a quorum queue where a classic one is wanted", []string{"BRIDGE_CLASSIC=true"}, staged(quorum(nil)), nil,
		"arguments of twoqueue", inspect.Error, "x-queue-type is quorum, must be classic"},
	{"a queue that is not durable", []string{"BRIDGE_CLASSIC=true"}, func(w *world) {
		if _, err := w.channel().QueueDeclare("twoqueue", false, false, false, false, classic(nil)); err != nil {
			w.t.Fatal(err)
		}
	}, nil, "arguments of twoqueue", inspect.Error, "not durable"},
	{"a queue that deletes itself", []string{"BRIDGE_CLASSIC=true"}, func(w *world) {
		if _, err := w.channel().QueueDeclare("twoqueue", true, true, false, false, classic(nil)); err != nil {
			w.t.Fatal(err)
		}
	}, nil, "arguments of twoqueue", inspect.Error, "deletes itself"},
	{"a time to live", nil, staged(quorum(amqp.Table{"x-message-ttl": 60000})), nil, "arguments of twoqueue", inspect.Error, "x-message-ttl is set to 60000"},
	{"a queue that expires", nil, staged(quorum(amqp.Table{"x-expires": 6000000})), nil, "arguments of twoqueue", inspect.Error, "x-expires is set"},
	{"a length limit", nil, staged(quorum(amqp.Table{"x-max-length": 10})), nil, "arguments of twoqueue", inspect.Error, "x-max-length is set to 10"},
	{"a limit of bytes", nil, staged(quorum(amqp.Table{"x-max-length-bytes": 1000})), nil, "arguments of twoqueue", inspect.Error, "x-max-length-bytes is set to 1000"},
	{"no delivery limit", nil, staged(quorum(amqp.Table{"x-delivery-limit": nil})), nil, "arguments of twoqueue", inspect.Error, "x-delivery-limit is not set, must be 1000000"},
	{"a small delivery limit", nil, staged(quorum(amqp.Table{"x-delivery-limit": 20})), nil, "arguments of twoqueue", inspect.Error, "x-delivery-limit is 20, must be 1000000"},
	{"no dead-letter exchange", []string{"BRIDGE_CLASSIC=true"}, staged(amqp.Table{"x-queue-type": "classic"}), nil,
		"arguments of twoqueue", inspect.Error, "x-dead-letter-exchange is not set"},
	{"another dead queue", nil, staged(quorum(amqp.Table{"x-dead-letter-routing-key": "elsewhere"})), nil, "arguments of twoqueue", inspect.Error, "x-dead-letter-routing-key is elsewhere"},
	{"dead letters without confirms", nil, staged(quorum(amqp.Table{"x-dead-letter-strategy": "at-most-once"})), nil,
		"arguments of twoqueue", inspect.Error, "x-dead-letter-strategy is at-most-once"},
	{"one consumer at a time", nil, staged(quorum(amqp.Table{"x-single-active-consumer": true})), nil, "arguments of twoqueue", inspect.Error, "only one verifier"},
	{"priorities", []string{"BRIDGE_CLASSIC=true"}, staged(classic(amqp.Table{"x-max-priority": 5})), nil, "arguments of twoqueue", inspect.Error, "x-max-priority"},
	{"a dead queue with a limit", nil, func(w *world) {
		w.queue("twoqueue.dead", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1000000, "x-max-length": 1})
	}, nil, "arguments of twoqueue.dead", inspect.Error, "x-max-length is set"},
	{"another audit", []string{"BRIDGE_AUDIT=100"}, func(w *world) {
		w.queue("twoqueue.dropped", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1000000, "x-max-length": 5, "x-overflow": "drop-head"})
	}, nil, "arguments of twoqueue.dropped", inspect.Error, "x-max-length is 5, must be 100"},
	{"an argument of which only the broker knows", nil, staged(quorum(amqp.Table{"x-queue-leader-locator": "balanced"})), nil,
		"arguments of twoqueue", inspect.Error, "x-queue-leader-locator is another one, a verifier refuses the queue"},
	{"a small delivery limit, without the management API", []string{"BRIDGE_MANAGEMENT_URL="}, staged(quorum(amqp.Table{"x-delivery-limit": 20})), nil,
		"arguments of twoqueue", inspect.Error, "x-delivery-limit is another one"},
	{"a consumer timeout below the hand-back", nil, staged(quorum(amqp.Table{"x-consumer-timeout": 60000})), nil,
		"consumer timeout", inspect.Error, "it is 1m on twoqueue, and verifiers hold messages for 10m"},
	{"a consumer timeout above the hand-back", []string{"BRIDGE_HAND_BACK=30s"}, staged(quorum(amqp.Table{"x-consumer-timeout": 60000})), nil,
		"consumer timeout", inspect.OK, "it is 1m on twoqueue"},
	{"a hand-back above the usual consumer timeout", []string{"BRIDGE_HAND_BACK=31m"}, nil, nothing, "consumer timeout", inspect.Warning, "BRIDGE_HAND_BACK is 31m"},

	{"a policy: time to live", nil, policed("^twoqueue$", map[string]any{"message-ttl": 1000}), nothing, "policies of twoqueue", inspect.Error, "message-ttl is 1s"},
	{"a policy: time to live of the waiting queue", nil, policed("waiting", map[string]any{"message-ttl": 1000}), nothing, "policies of twoqueue.waiting", inspect.Error, "message-ttl"},
	{"a policy: expires", nil, policed("^twoqueue$", map[string]any{"expires": 1000000}), nothing, "policies of twoqueue", inspect.Error, "expires is 16m40s"},
	{"a policy: expires, on the audit queue", []string{"BRIDGE_AUDIT=100"}, policed("dropped", map[string]any{"expires": 1000000}), nothing, "policies of twoqueue.dropped", inspect.Error, "expires"},
	{"a policy: length, where a full queue refuses", nil, policed("^twoqueue$", map[string]any{"max-length": 10}), nothing, "policies of twoqueue", inspect.Warning, "max-length is 10, and a full queue refuses"},
	{"a policy: length, where a full queue drops", []string{"BRIDGE_CLASSIC=true"}, policed("^twoqueue$", map[string]any{"max-length": 10}), nothing,
		"policies of twoqueue", inspect.Error, "max-length is 10, and a full queue drops"},
	{"a policy: length of the dead queue", nil, policed("dead", map[string]any{"max-length-bytes": 10}), nothing, "policies of twoqueue.dead", inspect.Error, "max-length-bytes is 10, and a full queue drops"},
	{"a policy: length of the dead queue, which refuses", nil, policed("dead", map[string]any{"max-length": 10, "overflow": "reject-publish"}), nothing,
		"policies of twoqueue.dead", inspect.Warning, "max-length is 10, and a full queue refuses"},
	{"a policy: delivery limit", nil, policed("^twoqueue$", map[string]any{"delivery-limit": 20}), nothing, "policies of twoqueue", inspect.Error, "delivery-limit is 20"},
	{"a policy: delivery limit of the dead queue", nil, policed("dead", map[string]any{"delivery-limit": 20}), nothing, "policies of twoqueue.dead", inspect.Error, "are dropped"},
	{"a policy: dead letters of the dead queue", nil, policed("dead", map[string]any{"dead-letter-exchange": "amq.fanout"}), nothing, "policies of twoqueue.dead", inspect.Warning, `dead-letter-exchange is "amq.fanout"`},
	{"an operator policy", nil, func(w *world) { w.operatorPolicy("ops", "^twoqueue$", map[string]any{"message-ttl": 5}) }, nothing, "policies of twoqueue", inspect.Error, "message-ttl is 5ms"},

	{"no verifier", nil, nil, nothing, "verifiers", inspect.Warning, "none consumes twoqueue"},
	{"messages and no verifier", nil, nil, func(w *world) { w.publish("twoqueue") }, "verifiers", inspect.Warning, "and 1 message is ready there and in the waiting queue"},
	{"messages that wait and nobody who consumes them", nil, nil, func(w *world) { w.publish("twoqueue.waiting"); w.consume("twoqueue") },
		"verifiers", inspect.Warning, "none consumes twoqueue.waiting, and 1 message is ready there"},
	{"dead messages", nil, nil, func(w *world) { w.publish("twoqueue.dead") }, "dead messages", inspect.Warning, "1 message is ready in twoqueue.dead"},
}
