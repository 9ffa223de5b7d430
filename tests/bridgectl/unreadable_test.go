package bridgectl_test

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

// Dead messages whose headers the AMQP library cannot read can be listed, shown and discarded,
// whether a verifier dead-lettered them or another program published them.
func TestDeadMessagesWithUnreadableHeaders(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	deep := any("core")
	for range 40 {
		deep = []any{deep}
	}
	var ids []string
	for _, queue := range []string{s.Topology.Queue, s.Topology.DeadQueue()} {
		id := uuid.Must(uuid.NewV7())
		ids = append(ids, id.String())
		p, err := wire.Encode(bridge.Message{ID: id, RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte("content")}}, s.Ledger.Identity())
		must(t, err)
		p.Headers["deep"] = deep
		must(t, s.Channel.Publish("", queue, true, false, p))
		if queue == s.Topology.Queue {
			v := s.Verify(verifier.Options{})
			s.WaitDepth(s.Topology.DeadQueue(), 1)
			v.Stop()
		}
	}
	s.WaitDepth(s.Topology.DeadQueue(), 2)
	var list deadMessages
	if s.json(&list, "dead", "list"); len(list.Messages) != 2 {
		t.Fatalf("listed: %+v", list)
	}
	for i, m := range list.Messages {
		if m.ID != ids[i] || m.RoutingKey != "emails" || m.Size != len("content") {
			t.Errorf("listed: %+v", m)
		}
	}
	if m := list.Messages[0]; m.Reason != "malformed" || !strings.Contains(m.Text, "32 deep") {
		t.Errorf("the verifier's: %+v", m)
	}
	if shown := s.must("dead", "show", ids[0]); !strings.Contains(shown, "content") {
		t.Errorf("shown: %s", shown)
	}
	var done outcomes
	if s.json(&done, "dead", "discard", "--yes", ids[0], ids[1]); done.Did != 2 {
		t.Errorf("discarded: %+v", done)
	}
	s.WaitDepth(s.Topology.DeadQueue(), 0)
}
