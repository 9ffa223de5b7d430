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

// deadMessages is what dead list answers.
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

// by is the ID of the only message with a reason.
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

// outcomes is what dead replay and dead discard answer.
type outcomes struct {
	Did      int `json:"done"`
	Not      int `json:"not_done"`
	LookedAt int `json:"looked_at"`
	Messages []struct {
		ID, Why, Note string
		Done          bool
	}
}

// fill has a verifier put one message of each kind into the dead queue: unroutable,
// not-allowed, foreign and malformed. The rows of the first two are gone afterwards;
// theirs is the foreign one's stage.
func fill(t *testing.T, s *scene) (theirs *scene) {
	t.Helper()
	theirs = sceneOn(t, stage.On(t, s.Kind, s.AMQP, s.Topology))
	theirs.Commit(letter("late", "foreign"))
	s.Commit(letter("late", "unroutable"))
	s.Commit(letter("forbidden", "not allowed"))
	err := s.Broker.Publish(t.Context(), []bridge.Outgoing{{
		Target:     bridge.Target{RoutingKey: s.Topology.Queue},
		Publishing: amqp.Publishing{Body: []byte("\x1b[31m\xffgarbage"), Type: "odd", Headers: amqp.Table{"colour": "blue", "x-bridge-ledger": "none"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	v := s.Verify(verifier.Options{Unroutable: 10 * time.Millisecond, Allow: []verifier.Allow{{RoutingKey: "late"}}})
	s.WaitDepth(s.Topology.DeadQueue(), 4)
	s.Eventually("their rows are gone", func() bool { return s.Rows() == 0 })
	v.Stop()
	return theirs
}

func TestDeadListShowsEverythingAndRemovesNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range stage.Databases {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, kind)
			fill(t, s)
			var first, again deadMessages
			s.json(&first, "dead", "list")
			if first.Depth != 4 || first.LookedAt != 4 || len(first.Messages) != 4 {
				t.Errorf("%+v", first)
			}
			for _, m := range first.Messages {
				want := map[string]string{"unroutable": "committed", "not-allowed": "committed", "foreign": "unknown", "malformed": "unknown"}[m.Reason]
				if m.Verdict != want || m.Text == "" || m.DeadAt == nil || time.Since(*m.DeadAt) > time.Hour ||
					m.Reason == "unroutable" && (m.RoutingKey != "late" || m.Attempts == 0 || m.Size != 10) {
					t.Errorf("%+v", m)
				}
			}
			if !strings.HasPrefix(first.by(t, "malformed"), "sha256:") {
				t.Errorf("a message without ID is called %s", first.by(t, "malformed"))
			}
			table := s.must("dead", "list")
			for _, m := range first.Messages {
				if !strings.Contains(table, m.ID) || !strings.Contains(table, m.Reason) {
					t.Errorf("%s is not in the table\n%s", m.ID, table)
				}
			}
			s.json(&again, "dead", "list", "--limit=2")
			if again.LookedAt != 2 || len(again.Messages) != 2 || again.Depth != 4 {
				t.Errorf("with a limit: %+v", again)
			}
			if text := s.must("dead", "list", "--limit=2"); !strings.Contains(text, "2 messages of 4 in queue staging.dead; only the first 2 were looked at") {
				t.Errorf("with a limit\n%s", text)
			}
			s.WaitDepth(s.Topology.DeadQueue(), 4)
		})
	}
}

func TestDeadListChooses(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	fill(t, s)
	var all deadMessages
	s.json(&all, "dead", "list")
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--reason=foreign"}, []string{"foreign"}},
		{[]string{"--reason=foreign,malformed"}, []string{"foreign", "malformed"}},
		{[]string{"--verdict=committed"}, []string{"not-allowed", "unroutable"}},
		{[]string{"--target=:la*"}, []string{"foreign", "unroutable"}},
		{[]string{"--target=:l.te"}, nil},
		{[]string{"--target=:late", "--verdict=committed"}, []string{"unroutable"}},
		{[]string{"--older-than=1h"}, nil},
		{[]string{"--younger-than=1h"}, []string{"foreign", "malformed", "not-allowed", "unroutable"}},
		{[]string{"--id=" + strings.ToUpper(all.by(t, "foreign"))}, []string{"foreign"}},
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
	s.WaitDepth(s.Topology.DeadQueue(), 4)
}

func TestDeadShowShowsAMessageWhole(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	fill(t, s)
	var list deadMessages
	s.json(&list, "dead", "list")
	var shown []struct {
		ID, Reason, Body, Replay string
		CutAt                    int `json:"cut_at"`
		Headers, Properties      map[string]any
	}
	s.json(&shown, "dead", "show", list.by(t, "unroutable"))
	if len(shown) != 1 || shown[0].Body != "unroutable" || shown[0].Headers["colour"] != "red" ||
		shown[0].Properties["type"] != "letter" || shown[0].Properties["priority"] != 3.0 || shown[0].CutAt != 0 {
		t.Errorf("%+v", shown)
	}
	s.json(&shown, "dead", "show", "--body=3", list.by(t, "unroutable"))
	if shown[0].Body != "unr" || shown[0].CutAt != 3 {
		t.Errorf("cut: %+v", shown)
	}
	// What somebody else has written must not act on the terminal.
	text := s.must("dead", "show", list.by(t, "malformed"))
	if strings.Contains(text, "\x1b") || !strings.Contains(text, "base64:") || !strings.Contains(text, "not possible") {
		t.Errorf("a malformed one\n%q", text)
	}
	s.fails(1, "not found among the 4 messages in queue \"staging.dead\"", "dead", "show", uuid.NewString())
	s.fails(1, "not found among the first 1 of 4 messages", "dead", "show", "--limit=1", uuid.NewString())
	s.WaitDepth(s.Topology.DeadQueue(), 4)
}

func TestADeadListThatIsKilledLosesNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	const n = 3000
	ids := s.bury(t, "late", n)
	s.WaitDepth(s.Topology.DeadQueue(), n)
	for range 3 {
		p := s.start("dead", "list", "--limit=5000")
		s.Eventually("it has taken some", func() bool { return s.Depth(s.Topology.DeadQueue()) < n-10 })
		if !p.Kill() {
			t.Fatalf("it had ended before it was killed: %s", p.Stdout.String()+p.Stderr.String())
		}
		s.WaitDepth(s.Topology.DeadQueue(), n)
	}
	for _, d := range s.peek(t, s.Topology.DeadQueue()) {
		i := slices.Index(ids, d.MessageId)
		if i < 0 {
			t.Fatalf("message %s is twice in the queue, or was never put there", d.MessageId)
		}
		ids = slices.Delete(ids, i, i+1)
	}
	if len(ids) != 0 {
		t.Errorf("%d messages are gone", len(ids))
	}
}

// Half of many, each other one: none else is removed, and none comes back.
func TestDeadDiscardRemovesWhatIsChosenAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	const pairs = 300
	var keep []string
	for range pairs / 50 {
		for range 5 {
			keep = append(keep, s.bury(t, "keep", 5)...)
			s.bury(t, "drop", 5)
			keep = append(keep, s.bury(t, "keep", 5)...)
			s.bury(t, "drop", 5)
		}
	}
	s.WaitDepth(s.Topology.DeadQueue(), 2*pairs)

	args := []string{"dead", "discard", "--target=:drop"}
	s.fails(2, "say --yes, or see with --dry-run", args...)
	s.fails(2, "no message is chosen", "dead", "discard", "--yes")
	var o outcomes
	s.json(&o, append(args, "--dry-run")...)
	if o.Did != pairs || o.Messages[0].Done {
		t.Errorf("dry run: %d", o.Did)
	}
	s.WaitDepth(s.Topology.DeadQueue(), 2*pairs)
	o = outcomes{}
	s.json(&o, append(args, "--yes")...)
	if o.Did != pairs || o.Not != 0 || o.LookedAt != 2*pairs || !o.Messages[0].Done {
		t.Errorf("%d discarded of %d", o.Did, o.LookedAt)
	}
	s.WaitDepth(s.Topology.DeadQueue(), pairs)
	for _, d := range s.peek(t, s.Topology.DeadQueue()) {
		if !slices.Contains(keep, d.MessageId) {
			t.Errorf("message %s for %v is there", d.MessageId, d.Headers[wire.HeaderRoutingKey])
		}
	}
	o = outcomes{}
	s.json(&o, "dead", "discard", "--yes", keep[0])
	if o.Did != 1 || o.Messages[0].ID != keep[0] {
		t.Errorf("%+v", o)
	}
	s.WaitDepth(s.Topology.DeadQueue(), pairs-1)
	s.fails(1, "not found", "dead", "discard", "--yes", keep[0])
	if text := s.must("dead", "discard", "--all", "--yes"); !strings.Contains(text, "299 messages discarded, 0 not") {
		t.Errorf("it says %s", text[len(text)-200:])
	}
	s.WaitDepth(s.Topology.DeadQueue(), 0)
}

func TestDeadCommandsRefuseWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	for _, c := range []struct{ args, want string }{
		{"dead show", "requires at least 1 arg"},
		{"dead list x", "unknown command"},
		{"dead list --limit=0", "--limit: must be positive"},
		{"dead list --verdict=maybe", `--verdict: "maybe" is not usable; give committed or unknown`},
		{"dead list --target=late", `--target: "late" is not EXCHANGE:KEY; write :late`},
		{"dead list --older-than=-1s", "--older-than"},
		{"dead replay", "no message is chosen"},
		{"dead replay --all", "say --yes"},
		{"dead replay --all --yes --to=late", `--to: "late" is not EXCHANGE:KEY; write :late`},
		{"dead replay --all --yes --to=:", "--to: names neither an exchange nor a queue"},
		{"dead discard --all", "say --yes"},
		{"dead discard 1", "say --yes"},
	} {
		s.fails(2, c.want, strings.Fields(c.args)...)
	}
	s.fails(1, "create the queues with bridgectl topology declare", "dead", "list", "--queue=nowhere")
	s.also("BRIDGE_AMQP_URL=").fails(2, "BRIDGE_AMQP_URL: is not set", "dead", "list")
}

// What did not fit into the dead queue with its reason lies there as a record. The
// commands read it like any other message.
func TestTheDeadCommandsReadARecord(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	target := s.Queue("late", nil)
	id := s.bury(t, target, 1)[0]
	d := s.Receive(s.Topology.DeadQueue(), 1)[0]
	err := s.Broker.Publish(t.Context(), []bridge.Outgoing{
		{Target: bridge.Target{RoutingKey: s.Topology.DeadQueue()}, Publishing: wire.DeadRecord(wire.Republished(d))},
		{Target: bridge.Target{RoutingKey: s.Topology.Queue}, Publishing: amqp.Publishing{
			MessageId: "huge", Headers: amqp.Table{"h": strings.Repeat("x", 130_950)}, Body: []byte("body")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	v := s.Verify(verifier.Options{})
	s.WaitDepth(s.Topology.DeadQueue(), 2)
	v.Stop()
	var list deadMessages
	s.json(&list, "dead", "list")
	if got := list.by(t, "malformed"); got != "huge" || list.by(t, "unroutable") != id {
		t.Errorf("listed: %+v", list)
	}
	var shown []struct {
		Body    string
		Headers map[string]any
	}
	s.json(&shown, "dead", "show", "huge")
	if h, _ := shown[0].Headers["h"].(string); shown[0].Body != "body" || len(h) != 130_950 {
		t.Errorf("shown: %+v", shown)
	}
	s.must("dead", "replay", id)
	if d := s.Receive(target, 1)[0]; !isLetter(d, id, id) {
		t.Errorf("it came as %+v", d)
	}
	r := s.run("dead", "replay", "huge", "--to=:late", "--force")
	if r.Code != 1 || !strings.Contains(r.Stdout, "it cannot be sent at all") {
		t.Errorf("exit code %d, %s", r.Code, r.Stdout)
	}
	s.must("dead", "discard", "huge", "--yes")
	s.WaitDepth(s.Topology.DeadQueue(), 0)
}
