package wire_test

import (
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// The arguments that the queues must have, and their types on the wire.
var (
	quorumArgs = amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000),
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "staging.dead",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	}
	classicArgs = amqp.Table{
		"x-queue-type":           "classic",
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "staging.dead",
	}
)

func TestDeclareMakesTheQueuesAndChecksThemAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		topology      bridge.Topology
		staging, dead amqp.Table
	}{
		"quorum": {
			bridge.Topology{Queue: "staging"}, quorumArgs,
			amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)},
		},
		"classic": {
			bridge.Topology{Queue: "staging", Classic: true}, classicArgs,
			amqp.Table{"x-queue-type": "classic"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			vhost := servertest.Vhost(t)
			broker := dial(t, vhost, nil)
			for range 2 {
				if err := test.topology.Declare(t.Context(), broker); err != nil {
					t.Fatal(err)
				}
				for queue, want := range map[string]amqp.Table{
					"staging": test.staging, "staging.waiting": test.staging, "staging.dead": test.dead,
				} {
					declare(t, vhost, queue, want) // fails if an argument differs
				}
			}
		})
	}
}

// with returns args with a changed or added argument, or without the argument if value is nil.
func with(args amqp.Table, name string, value any) amqp.Table {
	args = maps.Clone(args)
	args[name] = value
	if value == nil {
		delete(args, name)
	}
	return args
}

func TestAQueueWithOtherArgumentsIsReportedByTheArgument(t *testing.T) {
	t.Parallel()
	quorum, classic := bridge.Topology{Queue: "staging"}, bridge.Topology{Queue: "staging", Classic: true}
	vhost := servertest.Vhost(t)
	broker := dial(t, vhost, nil)
	ch := channel(t, vhost)
	for _, test := range []struct {
		topology bridge.Topology
		queue    string
		args     amqp.Table
		durable  bool
		property string
	}{
		{quorum, "staging", with(quorumArgs, "x-message-ttl", int32(60000)), true, "x-message-ttl"},
		{quorum, "staging", with(with(quorumArgs, "x-max-length", int32(10)), "x-overflow", "drop-head"), true, "x-max-length"},
		{quorum, "staging", with(quorumArgs, "x-max-length-bytes", int32(10)), true, "x-max-length-bytes"},
		{quorum, "staging", with(quorumArgs, "x-expires", int32(600000)), true, "x-expires"},
		{quorum, "staging", with(quorumArgs, "x-delivery-limit", int32(20)), true, "x-delivery-limit"},
		{quorum, "staging", with(quorumArgs, "x-delivery-limit", int32(-1)), true, "x-delivery-limit"},
		{quorum, "staging", with(quorumArgs, "x-delivery-limit", nil), true, "x-delivery-limit"},
		{quorum, "staging", with(quorumArgs, "x-dead-letter-exchange", "amq.fanout"), true, "x-dead-letter-exchange"},
		{quorum, "staging", with(quorumArgs, "x-dead-letter-routing-key", "other"), true, "x-dead-letter-routing-key"},
		{quorum, "staging", with(quorumArgs, "x-dead-letter-strategy", nil), true, "x-dead-letter-strategy"},
		{quorum, "staging", with(quorumArgs, "x-overflow", "drop-head"), true, "x-overflow"},
		{quorum, "staging", with(quorumArgs, "x-single-active-consumer", true), true, "x-single-active-consumer"},
		{quorum, "staging", classicArgs, true, "x-overflow"}, // the broker compares the type last
		{quorum, "staging", amqp.Table{"x-queue-type": "stream"}, true, "x-queue-type"},
		{quorum, "staging", classicArgs, false, "durable"},
		{quorum, "staging", with(with(quorumArgs, "x-consumer-timeout", int32(60000)), "x-delivery-limit", nil), true, "x-delivery-limit"},
		{quorum, "staging", with(with(quorumArgs, "x-consumer-timeout", int32(60000)), "x-message-ttl", int32(60000)), true, "x-message-ttl"},
		{quorum, "staging.waiting", with(quorumArgs, "x-message-ttl", int32(60000)), true, "x-message-ttl"},
		{quorum, "staging.dead", amqp.Table{"x-queue-type": "quorum"}, true, "x-delivery-limit"},
		{classic, "staging", with(classicArgs, "x-message-ttl", int32(60000)), true, "x-message-ttl"},
		{classic, "staging", with(classicArgs, "x-max-length", int32(10)), true, "x-max-length"}, // drop-head is the default
		{classic, "staging", with(classicArgs, "x-dead-letter-exchange", "amq.fanout"), true, "x-dead-letter-exchange"},
		{classic, "staging", with(classicArgs, "x-max-priority", int32(5)), true, "x-max-priority"},
		{classic, "staging", with(classicArgs, "x-queue-type", "quorum"), true, "x-queue-type"},
	} {
		for _, queue := range []string{"staging", "staging.waiting", "staging.dead"} {
			if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := ch.QueueDeclare(test.queue, test.durable, false, false, false, test.args); err != nil {
			t.Fatal(err)
		}
		err := test.topology.Declare(t.Context(), broker)
		var mismatch *bridge.QueueMismatch
		if !errors.As(err, &mismatch) || mismatch.Queue != test.queue || mismatch.Property != test.property {
			t.Errorf("%s with %v: %v, want a mismatch of %s", test.queue, test.args, err, test.property)
			continue
		}
		contains(t, err, "received ")
		contains(t, err, "delete the queue when it is empty, or name another one")
	}
}

// RabbitMQ ignores unknown arguments and treats a missing type as classic. Both differences are
// harmless.
func TestAQueueWithHarmlessDifferencesIsAccepted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		topology bridge.Topology
		args     amqp.Table
	}{
		{bridge.Topology{Queue: "staging"}, with(quorumArgs, "x-owner", "shop")},
		{bridge.Topology{Queue: "staging"}, with(quorumArgs, "x-consumer-timeout", int32(3600000))}, // 4.3 does use it
		{bridge.Topology{Queue: "staging", Classic: true}, with(classicArgs, "x-queue-type", nil)},
	} {
		vhost := servertest.Vhost(t)
		declare(t, vhost, "staging", test.args)
		if err := test.topology.Declare(t.Context(), dial(t, vhost, nil)); err != nil {
			t.Errorf("%v: %v", test.args, err)
		}
	}
}

func TestALoginWithoutTheRightToConfigureFindsTheQueuesEnough(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	user := servertest.User(t, vhost, "", ".*", ".*")
	topology := bridge.Topology{Queue: "staging", OrderedShards: 1}

	err := topology.Declare(t.Context(), dial(t, user, nil))
	if refusal := bridge.Refusal(err); refusal == nil || refusal.Code != amqp.AccessRefused {
		t.Fatalf("without queues: %v", err)
	}
	contains(t, err, `queue "staging": is missing, and the login has no right to declare it`)

	if err := topology.Declare(t.Context(), dial(t, vhost, nil)); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	quiet, err := bridge.Dial(t.Context(), user, &bridge.BrokerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(quiet.Close)
	for n := 1; n <= 2; n++ { // as in every session of a verifier
		if err := topology.Declare(t.Context(), quiet); err != nil {
			t.Errorf("with queues: %v", err)
		}
		for _, queue := range topology.Queues() {
			if got := strings.Count(log.String(), "queue="+queue.Name+" "); got != n {
				t.Errorf("%d warnings of %s in\n%s", got, queue.Name, log.String())
			}
		}
		if got := strings.Count(log.String(), "without x-single-active-consumer it keeps no order"); got != n {
			t.Errorf("%d words about the order in\n%s", got, log.String())
		}
	}
	if _, err := channel(t, vhost).QueueDelete("staging.dead", false, false, false); err != nil {
		t.Fatal(err)
	}
	err = topology.Declare(t.Context(), dial(t, user, nil))
	if err == nil {
		t.Fatal("one queue is missing")
	}
	contains(t, err, `queue "staging.dead": is missing`)
}
