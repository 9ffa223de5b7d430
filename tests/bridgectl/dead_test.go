package bridgectl_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// deadMessages is the answer of dead list.
type deadMessages struct {
	LookedAt int `json:"looked_at"`
	Depth    int
	Messages []struct {
		ID, Reason, Text, Verdict, Exchange, Ledger string
		RoutingKey                                  string `json:"routing_key"`
		Attempts                                    int
		Size                                        int
		DeadAt                                      *time.Time `json:"dead_at"`
	}
}

// by returns the ID of the only message with this reason.
func (d deadMessages) by(t *testing.T, reason string) string {
	t.Helper()
	var ids []string
	for _, m := range d.Messages {
		if m.Reason == reason {
			ids = append(ids, m.ID)
		}
	}
	if len(ids) != 1 {
		t.Fatalf("%d messages with reason %s: %+v", len(ids), reason, d.Messages)
	}
	return ids[0]
}

// outcomes is the answer of dead replay and dead discard.
type outcomes struct {
	Did      int `json:"done"`
	Not      int `json:"not_done"`
	LookedAt int `json:"looked_at"`
	Messages []struct {
		ID, Why, Note string
		Done          bool
	}
}

// fill has a verifier dead-letter one message of each reason: unroutable, not-allowed, foreign
// and malformed. Afterwards the rows of the first two are gone. theirs is the stage of the
// foreign message.
func fill(t *testing.T, s *scene) (theirs *scene) {
	t.Helper()
	theirs = sceneOn(t, stage.On(t, s.Kind, s.AMQP, s.Topology))
	theirs.Commit(letter("late", "foreign"))
	s.Commit(letter("late", "unroutable"))
	s.Commit(letter("forbidden", "not allowed"))
	err := s.Channel.Publish("", s.Topology.Queue, true, false,
		amqp.Publishing{Body: []byte("\x1b[31m\xffgarbage"), Type: "odd", Headers: amqp.Table{"colour": "blue", "x-bridge-ledger": "none"}})
	must(t, err)
	v := s.Verify(verifier.Options{Unroutable: 10 * time.Millisecond, Allow: []verifier.Allow{{RoutingKey: "late"}}})
	s.WaitDepth(s.Topology.DeadQueue(), 4)
	s.Eventually("their rows are gone", func() bool { return s.Rows() == 0 })
	v.Stop()
	return theirs
}

// dead list and dead show leave every message in its queue.
func TestTheDeadCommandsThatLookRemoveNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	theirs := fill(t, s)
	var all deadMessages
	s.json(&all, "dead", "list")
	if all.Depth != 4 || all.LookedAt != 4 || len(all.Messages) != 4 {
		t.Errorf("%+v", all)
	}
	for _, m := range all.Messages {
		want := map[string]string{"unroutable": "committed", "not-allowed": "committed", "foreign": "unknown", "malformed": "unknown"}[m.Reason]
		if m.Verdict != want || m.Text == "" || m.DeadAt == nil || time.Since(*m.DeadAt) > time.Hour ||
			m.Reason == "unroutable" && (m.RoutingKey != "late" || m.Attempts == 0 || m.Size != 10) {
			t.Errorf("%+v", m)
		}
	}
	unroutable, malformed := all.by(t, "unroutable"), all.by(t, "malformed")
	if !strings.HasPrefix(malformed, "sha256:") {
		t.Errorf("a message without ID is called %s", malformed)
	}
	if text := s.must("dead", "list", "--limit=2"); !strings.Contains(text, "2 messages of 4 in queue staging.dead; only the first 2 were read") {
		t.Errorf("with a limit\n%s", text)
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--reason=foreign,malformed"}, []string{"foreign", "malformed"}},
		{[]string{"--verdict=committed"}, []string{"not-allowed", "unroutable"}},
		{[]string{"--target=:la*"}, []string{"foreign", "unroutable"}},
		{[]string{"--target=:l.te"}, nil},
		{[]string{"--target=:late", "--verdict=committed"}, []string{"unroutable"}},
		{[]string{"--older-than=1h"}, nil},
		{[]string{"--younger-than=1h"}, []string{"foreign", "malformed", "not-allowed", "unroutable"}},
	} {
		var some deadMessages
		s.json(&some, append([]string{"dead", "list"}, c.args...)...)
		var got []string
		for _, m := range some.Messages {
			got = append(got, m.Reason)
		}
		if slices.Sort(got); !slices.Equal(got, c.want) || some.LookedAt != 4 {
			t.Errorf("%v: %v, not %v", c.args, got, c.want)
		}
	}

	var shown []struct {
		Body                string
		CutAt               int `json:"cut_at"`
		Headers, Properties map[string]any
	}
	s.json(&shown, "dead", "show", "--body=3", strings.ToUpper(unroutable))
	if len(shown) != 1 || shown[0].Body != "unr" || shown[0].CutAt != 3 || shown[0].Headers["colour"] != "red" ||
		shown[0].Properties["type"] != "letter" || shown[0].Properties["priority"] != 3.0 {
		t.Errorf("%+v", shown)
	}
	// Control characters of a foreign message must not reach the terminal.
	text := s.must("dead", "show", malformed)
	if strings.Contains(text, "\x1b") || !strings.Contains(text, "base64:") || !strings.Contains(text, "not possible") {
		t.Errorf("a malformed one\n%q", text)
	}
	s.fails(1, "not found among the 4 messages in queue \"staging.dead\"", "dead", "show", uuid.NewString())
	s.fails(1, "not found among the first 1 of 4 messages", "dead", "show", "--limit=1", uuid.NewString())
	s.fails(1, "create the queues with bridgectl topology declare", "dead", "list", "--queue=nowhere")

	// Where the ledger has no answer, replay believes the message's verdict header, and its note
	// says so.
	for why, tool := range map[string]*tool{
		"the ledger has no row, as after a verifier's verdict": s.tool,
		"BRIDGE_DATABASE_URL is not set":                       s.also("BRIDGE_DATABASE_URL="),
		"it belongs to ledger " + s.Ledger.Identity().String(): theirs.tool,
	} {
		var o outcomes
		tool.json(&o, "dead", "replay", "--dry-run", unroutable)
		if o.Did != 1 || !strings.Contains(o.Messages[0].Note, "by its header x-bridge-dead-verdict") || !strings.Contains(o.Messages[0].Note, why) {
			t.Errorf("want %q: %+v", why, o)
		}
	}
	s.WaitDepth(s.Topology.DeadQueue(), 4)
}

// Every second message is discarded. All others stay, and no discarded message comes back.
func TestDeadDiscardRemovesTheChosenMessagesOnly(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	const half = 30 // more than one batch
	var letters []bridge.Message
	for range half {
		letters = append(letters, letter("keep", ""), letter("drop", ""))
	}
	ids := s.deadLetter(letters...)

	args := []string{"dead", "discard", "--target=:drop"}
	s.fails(2, "confirm with --yes, or preview with --dry-run", args...)
	var o outcomes
	s.json(&o, append(args, "--dry-run")...)
	if o.Did != half || o.Messages[0].Done {
		t.Errorf("dry run: %d", o.Did)
	}
	s.WaitDepth(s.Topology.DeadQueue(), 2*half)
	o = outcomes{}
	s.json(&o, append(args, "--yes")...)
	if o.Did != half || o.Not != 0 || o.LookedAt != 2*half || !o.Messages[0].Done {
		t.Errorf("%d discarded of %d", o.Did, o.LookedAt)
	}
	s.must("dead", "discard", "--yes", ids[0])
	s.WaitDepth(s.Topology.DeadQueue(), half-1)
	s.fails(1, "not found", "dead", "discard", "--yes", ids[0])
	left, err := s.Take(s.Topology.DeadQueue())
	if err != nil || len(left) != half-1 {
		t.Errorf("%d messages are left, %v", len(left), err)
	}
	for _, d := range left {
		if i := slices.Index(ids, d.MessageId); i <= 0 || i%2 != 0 {
			t.Errorf("message %s for %v is left", d.MessageId, d.Headers[wire.HeaderRoutingKey])
		}
	}

	s.deadLetter(letter("keep", ""), letter("drop", ""))
	if text := s.must("dead", "discard", "--all", "--yes"); !strings.Contains(text, "2 messages discarded, 0 not") {
		t.Errorf("it says %s", text)
	}
	s.WaitDepth(s.Topology.DeadQueue(), 0)
}
