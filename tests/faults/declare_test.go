package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// RabbitMQ deletes a quorum queue whose declaration fails, with what it has confirmed by
// then. The harness declares the targets' queues, so this is an act of its own, not a
// loss. What the broker does inside one declaration happens here in three steps, but for
// the failure, which is real: another process has the name of the queue's process.
func TestAFailedDeclarationIsADeletion(t *testing.T) {
	t.Parallel()
	s := newStage(t, world.Build(t, ""), "")
	s.must("delete target", s.RemoveTarget(world.Quorum))
	s.must("declare target", s.Declare(t.Context()))
	s.commit(orders(3, world.Quorum))
	s.forgotten()

	conn, err := amqp.Dial(s.address)
	s.must("dial", err)
	defer conn.Close()
	ch, err := conn.Channel()
	s.must("open channel", err)
	n, err := ch.QueueDelete(world.Quorum.RoutingKey, false, false, false)
	s.must("delete target", err)
	if n != 3 {
		t.Fatalf("the target held %d messages, must be 3", n)
	}
	name := fmt.Sprintf(`list_to_atom("%s_%s")`, s.address[strings.LastIndex(s.address, "/")+1:], world.Quorum.RoutingKey)
	eval := func(text string) {
		_, err := servertest.RabbitMQ(t).Ctl(t.Context(), "eval", text)
		s.must("eval", err)
	}
	eval(`register(` + name + `, spawn(fun() -> receive stop -> ok end end)).`)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = s.RedeclareTarget(ctx, world.Quorum)
	eval(name + ` ! stop.`)
	if err == nil {
		t.Fatal("the declaration has not failed")
	}
	s.must("declare target", s.RedeclareTarget(t.Context(), world.Quorum))

	s.commit(orders(1, world.Quorum))
	s.AddReceiver()
	s.must("finish", s.Finish(t.Context()))
	totals, violations, err := s.Judge(t.Context())
	s.must("judge", err)
	if len(violations) > 0 || totals.WithTarget != 3 || totals.Delivered != 1 {
		t.Errorf("%v%s", totals, world.Summary(violations))
	}
}
