package verifier

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

func TestOptionsNameTheFieldThatIsWrong(t *testing.T) {
	for want, opts := range map[string]Options{
		"Prefetch":     {Prefetch: 70_000},
		"Settlers":     {Settlers: -2},
		"Drain":        {Drain: -time.Second},
		"ExplainAfter": {ExplainAfter: -time.Second},
		"Allow":        {Allow: []Allow{{RoutingKey: "\xff"}}},
	} {
		if _, err := opts.withDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", want, err)
		}
	}
	if _, err := (*Options)(nil).withDefaults(); err != nil {
		t.Errorf("nil options: %v", err)
	}
}

func TestAllowListPermitsTargetsAndTheirCopies(t *testing.T) {
	topology := bridge.Topology{Queue: "staging"}
	list := newAllowList(Options{Topology: topology, Allow: []Allow{
		{Exchange: "", RoutingKey: "orders.*"},
		{Exchange: "events", RoutingKey: "*"},
	}})
	message := func(exchange, key string, cc ...any) wire.Staged {
		s := wire.Staged{Message: bridge.Message{Exchange: exchange, RoutingKey: key}}
		if cc != nil {
			s.Message.Publishing.Headers = amqp.Table{"CC": cc}
		}
		return s
	}
	for _, test := range []struct {
		staged wire.Staged
		want   bool
	}{
		{message("", "orders.new"), true},
		{message("", "orders."), true},
		{message("", "ordersXnew"), false}, // the dot is a dot
		{message("", "my.orders.new"), false},
		{message("events", ""), true},
		{message("events", "a\nb"), true},
		{message("events2", "k"), false},
		{message("", "orders.new", "orders.copy"), true},
		{message("", "orders.new", "payroll"), false},
	} {
		if got := list.permits(test.staged); got != test.want {
			t.Errorf("%s with %v: permitted %t", test.staged.Target(), test.staged.Message.Publishing.Headers, got)
		}
	}
	topology.Exchange = "staging.stage"
	open := newAllowList(Options{Topology: topology})
	for target, want := range map[string]bool{"any": true, "staging": false, "staging.waiting": false, "staging.dead": false} {
		if got := open.permits(message("", target)); got != want {
			t.Errorf("without a list, queue %s: permitted %t", target, got)
		}
	}
	if open.permits(message(topology.Exchange, "staging")) {
		t.Error("a message for the verifier's own exchange would be staged again and again")
	}
	if !open.permits(message("x", "staging")) {
		t.Error("the own queues' names are forbidden on the default exchange only")
	}
}

func TestPermitsProtectsTheQueuesOfAVerifierWithTheSameOptions(t *testing.T) {
	for _, opts := range []*Options{nil, {}, {Topology: bridge.Topology{OrderedShards: 2}}, {Topology: bridge.Topology{Queue: "staging"}}} {
		full, err := opts.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		permits, topology := opts.Permits(), full.Topology
		for _, queue := range append(topology.OrderedQueues(), topology.Queue, topology.WaitingQueue(), topology.DeadQueue()) {
			if permits(wire.Staged{Message: bridge.Message{RoutingKey: queue}}) {
				t.Errorf("%+v: queue %s is a permitted target", opts, queue)
			}
		}
	}
}
