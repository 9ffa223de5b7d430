package verifier_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// nestedLists returns a list in a list in a list ...
func nestedLists(depth int) any {
	value := any("core")
	for range depth {
		value = []any{value}
	}
	return value
}

// A message that the AMQP library cannot read would end the connection of every session, so that
// no message behind it is forwarded. It is dead-lettered whole and ends no session, also from the
// ordered queues and the waiting queue.
func TestUnreadableHeadersEndNoSession(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	s.Topology.OrderedShards = 1
	if err := s.Topology.Declare(t.Context(), s.Broker); err != nil {
		t.Fatal(err)
	}
	queue := s.Queue("target", nil)
	want := map[string]bool{}
	publish := func(to string, header any) {
		id := uuid.Must(uuid.NewV7())
		p, err := wire.Encode(bridge.Message{ID: id, RoutingKey: queue, Publishing: amqp.Publishing{Body: []byte("body")}}, s.Ledger.Identity())
		if err != nil {
			t.Fatal(err)
		}
		p.Headers["h"] = header
		if header == nil { // about as large as fits into a frame
			const frame, own, record, ledger = 131_072 - 10, 8 + 12, 4 + 4 + len("body"), 1 + len(wire.HeaderLedger) + 1 + 4 + 36
			p.Headers["h"] = ""
			p.Headers["h"] = strings.Repeat("x", frame-own-(len(wire.EncodeRecord(p))-record+ledger))
		}
		want[p.MessageId] = true
		if err := s.Channel.PublishWithContext(t.Context(), "", to, true, false, p); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range []string{s.Topology.Queue, s.Topology.WaitingQueue(), s.Topology.OrderedQueues()[0]} {
		publish(to, nil) // exceeds a frame when the queue has added the delivery count
		publish(to, nestedLists(40))
		publish(to, make([]any, 8193))
	}
	ids := goodBatch(s, queue, 40)
	v := s.Verify(verifier.Options{})
	expectAll(t, s, queue, ids)
	for _, d := range s.Receive(s.Topology.DeadQueue(), len(want)) {
		isDead(t, d, "malformed", "")
		opened, err := wire.OpenDead(d)
		if err != nil || string(opened.Body) != "body" || opened.Headers[wire.HeaderExchange] != "" || opened.Headers["h"] == nil {
			t.Errorf("opened: %v, %d bytes of body, headers %d", err, len(opened.Body), len(opened.Headers))
		}
		if !want[opened.MessageId] {
			t.Errorf("dead message %q", opened.MessageId)
		}
		delete(want, opened.MessageId)
	}
	if n := v.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions", n)
	}
	v.Stop()
}
