package bridgectl_test

import (
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestReplaySendsCommittedMessagesOnly(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	theirs := fill(t, s)
	// A committed message is published to its target, unchanged. Its row is already gone, so by
	// way of the staging queue it would be dropped.
	var list deadMessages
	s.json(&list, "dead", "list")
	id := list.by(t, "unroutable")
	s.fails(1, "1 of 1 messages not replayed", "dead", "replay", id) // the target does not exist yet
	s.WaitDepth(s.Topology.DeadQueue(), 4)
	target := s.Queue("late", nil)
	var o outcomes
	s.json(&o, "dead", "replay", id)
	if o.Did != 1 || o.Not != 0 || !o.Messages[0].Done || o.Messages[0].ID != id {
		t.Errorf("%+v", o)
	}
	if d := s.Receive(target, 1)[0]; !isLetter(d, id, "unroutable") {
		t.Errorf("it came as %+v", d)
	}
	s.WaitDepth(s.Topology.DeadQueue(), 3)
	s.fails(1, "not found", "dead", "replay", id)

	s.Queue("forbidden", nil)
	rolledBack := theirs.RollBack(letter("late", "rolled back"))[0].String()
	v := s.Verify(verifier.Options{}) // of another ledger
	s.WaitDepth(s.Topology.DeadQueue(), 4)
	v.Stop()
	list = deadMessages{}
	s.json(&list, "dead", "list")
	forbidden, malformed := list.by(t, "not-allowed"), list.by(t, "malformed")

	for _, c := range []struct {
		tool    *tool
		id, why string
	}{
		{s.tool, rolledBack, "it belongs to ledger " + theirs.Ledger.Identity().String() + "; set BRIDGE_DATABASE_URL to that ledger's database"},
		{s.also("BRIDGE_DATABASE_URL="), rolledBack, "BRIDGE_DATABASE_URL is not set, so its ledger cannot be asked"},
		{theirs.tool, rolledBack, "it was rolled back, unless it was forwarded before (ask the inbox): discard it"},
		{s.tool, forbidden, "the verifiers' allow-list forbids its target"},
		{s.tool, malformed, "malformed staged message"},
	} {
		r := c.tool.run("dead", "replay", c.id)
		if r.Code != 1 || !strings.Contains(r.Stdout, c.why) || !strings.Contains(r.Stdout, "--force") {
			t.Errorf("exit code %d, it says\n%s%swant %q", r.Code, r.Stdout, r.Stderr, c.why)
		}
	}
	if n := s.Depth(target); n != 0 {
		t.Fatalf("%d messages were sent", n)
	}
	s.WaitDepth(s.Topology.DeadQueue(), 4)

	// A malformed message needs --to; the others are sent to their own targets.
	r := s.run("dead", "replay", "--all", "--yes", "--force")
	if r.Code != 1 || !strings.Contains(r.Stdout, "3 messages replayed, 1 not") || !strings.Contains(r.Stderr, "1 of 4 messages not replayed") {
		t.Errorf("exit code %d, it says\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	s.WaitDepth(target, 2)
	s.WaitDepth("forbidden", 1)
	r = s.run("dead", "replay", malformed, "--to=:late")
	if r.Code != 1 || s.Depth(target) != 2 {
		t.Errorf("without force: exit code %d, %s", r.Code, r.Stdout)
	}
	s.must("dead", "replay", malformed, "--to=:late", "--force")
	last := s.Receive(target, 3)[2]
	if string(last.Body) != "\x1b[31m\xffgarbage" || last.MessageId != "" || last.Type != "odd" || len(last.Headers) != 1 || last.Headers["colour"] != "blue" {
		t.Errorf("the malformed one came as %+v", last)
	}
	s.WaitDepth(s.Topology.DeadQueue(), 0)
}

// A group that the broker moved has not been judged. Replay splits it into its messages.
func TestReplayTakesApartAGroupThatTheBrokerHasMoved(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	target := s.Queue("late", nil)
	var ids []string
	for _, id := range s.Commit(letter(target, "1"), letter(target, "2"), letter(target, "3")) {
		ids = append(ids, id.String())
	}
	d, ok, err := s.Channel.Get(s.Topology.Queue, false)
	if err != nil || !ok {
		t.Fatal(err)
	}
	must(t, d.Reject(false))
	s.WaitDepth(s.Topology.DeadQueue(), 1)
	var list deadMessages
	s.json(&list, "dead", "list", "--reason=broker")
	if len(list.Messages) != 1 || list.Messages[0].Text != `moved by the broker from queue "staging": rejected` {
		t.Fatalf("%+v", list)
	}
	s.must("dead", "replay", ids[1]) // one of the group's messages
	var got []string
	for i, d := range s.Receive(target, 3) {
		got = append(got, d.MessageId)
		if !isLetter(d, ids[i], string(rune('1'+i))) {
			t.Errorf("it came as %+v", d)
		}
	}
	if !slices.Equal(got, ids) || s.Rows() != 0 {
		t.Errorf("%v came, not %v; %d rows", got, ids, s.Rows())
	}
	s.WaitDepth(s.Topology.DeadQueue(), 0)
}

// A missing exchange closes the channel, with all publications in flight on it.
func TestReplayKeepsBackOnlyMessagesThatTheirTargetRefuses(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	const rounds = 10 // more than one batch
	var letters []bridge.Message
	for range rounds {
		letters = append(letters, letter("good", ""), letter("good", ""), letter("good", ""), letter("full", ""), letter("missing", ""),
			bridge.Message{Exchange: "missing", RoutingKey: "k"})
	}
	var want []string
	for i, id := range s.deadLetter(letters...) {
		if letters[i].RoutingKey == "good" {
			want = append(want, id)
		}
	}
	good := s.Queue("good", nil)
	s.Queue("full", amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	r := s.run("dead", "replay", "--all", "--yes")
	if r.Code != 1 || !strings.Contains(r.Stderr, "30 of 60 messages not replayed") {
		t.Errorf("exit code %d, %s", r.Code, r.Stderr)
	}
	for _, words := range []string{"no queue is bound to its target", "its target refuses it; a queue may be full", "the broker refuses it: Exception (404)"} {
		if strings.Count(r.Stdout, words) != rounds {
			t.Errorf("%q is said %d times\n%s", words, strings.Count(r.Stdout, words), r.Stdout)
		}
	}
	s.WaitDepth(s.Topology.DeadQueue(), 3*rounds)
	taken, err := s.Take(good)
	must(t, err)
	came := make(map[string]bool)
	for _, d := range taken {
		came[d.MessageId] = true
	}
	for _, id := range want {
		if !came[id] {
			t.Errorf("message %s is lost", id)
		}
	}
	if len(came) != len(want) {
		t.Errorf("%d messages came, not %d", len(came), len(want))
	}
	s.must("dead", "replay", "--all", "--yes", "--to=:"+good)
	s.WaitDepth(s.Topology.DeadQueue(), 0)
}

// SIGKILL between the arrival at the target and the ack of the dead copy leaves two copies of
// each message, with the same ID.
func TestAReplayThatIsKilledLosesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		reply bool
		at    servertest.Method
		dead  int
	}{
		{"before the confirms", true, servertest.BasicAck, 3},
		{"before the acks", false, servertest.BasicAck, 3},
		{"before the rows are deleted", false, servertest.BasicQos, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			wrong := newScene(t, stage.Postgres)
			s := sceneOn(t, stage.On(t, stage.Postgres, wrong.AMQP, wrong.Topology))
			target := s.Queue("target", nil)
			s.StageSingly() // a group would do as well, but is counted as one message
			ids := s.Commit(letter(target, "x"), letter(target, "x"), letter(target, "x"))
			v := wrong.Verify(verifier.Options{})
			s.WaitDepth(s.Topology.DeadQueue(), len(ids))
			v.Stop()

			g, through := servertest.NewGate(t, s.AMQP, func(f servertest.Frame) bool { return f.Reply == c.reply && f.Method == c.at })
			p := s.also("BRIDGE_AMQP_URL="+through).start("dead", "replay", "--all", "--yes")
			g.Reached(t)
			s.WaitDepth(target, len(ids))
			if n := s.Depth(s.Topology.DeadQueue()); n != 0 {
				t.Errorf("%d messages are ready in the dead queue", n)
			}
			p.KillRunning()
			s.WaitDepth(s.Topology.DeadQueue(), c.dead)
			if n := s.Rows(); n != len(ids) {
				t.Errorf("%d rows in the ledger", n)
			}
			if c.dead == 0 {
				return
			}
			s.must("dead", "replay", "--all", "--yes")
			came := make(map[string]int)
			for _, d := range s.Receive(target, 2*len(ids)) {
				if came[d.MessageId]++; !isLetter(d, d.MessageId, "x") {
					t.Errorf("it came as %+v", d)
				}
			}
			for _, id := range ids {
				if came[id.String()] != 2 {
					t.Errorf("message %s came %d times", id, came[id.String()])
				}
			}
			s.WaitDepth(s.Topology.DeadQueue(), 0)
			if n := s.Rows(); n != 0 {
				t.Errorf("%d rows in the ledger at the end", n)
			}
		})
	}
}
