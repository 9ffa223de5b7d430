package bridgectl_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// A committed one goes to its target as its receiver expects it. Its row is gone
// already, so a way through the staging queue would drop it.
func TestReplaySendsACommittedMessageToItsTarget(t *testing.T) {
	t.Parallel()
	for _, kind := range stage.Databases {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, kind)
			fill(t, s)
			var list deadMessages
			s.json(&list, "dead", "list")
			id := list.by(t, "unroutable")

			s.fails(1, "1 of 1 messages not replayed", "dead", "replay", id) // still no target
			s.WaitDepth(s.Topology.DeadQueue(), 4)
			if n := s.Rows(); n != 0 {
				t.Errorf("%d rows in the ledger before the replay", n)
			}
			target := s.Queue("late", nil)
			var o outcomes
			s.json(&o, "dead", "replay", "--dry-run", id)
			if o.Did != 1 || o.Messages[0].Done || s.Depth(target) != 0 {
				t.Errorf("dry run: %+v", o)
			}
			s.json(&o, "dead", "replay", id)
			if o.Did != 1 || o.Not != 0 || !o.Messages[0].Done || o.Messages[0].ID != id {
				t.Errorf("%+v", o)
			}
			if d := s.Receive(target, 1)[0]; !isLetter(d, id, "unroutable") {
				t.Errorf("it came as %+v", d)
			}
			s.WaitDepth(s.Topology.DeadQueue(), 3)
			s.fails(1, "not found", "dead", "replay", id)
		})
	}
}

// Where the ledger cannot know, the word of a header is taken, and that is said.
func TestReplaySaysWhomItBelieves(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	theirs := fill(t, s)
	var list deadMessages
	s.json(&list, "dead", "list")
	id := list.by(t, "unroutable")
	for why, tool := range map[string]*tool{
		"the ledger has no row any more, as it is when a verifier has said so": s.tool,
		"BRIDGE_DATABASE_URL is not set":                                       s.also("BRIDGE_DATABASE_URL="),
		"it belongs to ledger " + s.Ledger.Identity().String():                 theirs.tool,
	} {
		var o outcomes
		tool.json(&o, "dead", "replay", "--dry-run", id)
		if o.Did != 1 || !strings.Contains(o.Messages[0].Note, "on the word of its header x-bridge-dead-verdict") || !strings.Contains(o.Messages[0].Note, why) {
			t.Errorf("want %q: %+v", why, o)
		}
	}
}

func TestReplaySendsNothingThatMayHaveBeenRolledBack(t *testing.T) {
	t.Parallel()
	for _, kind := range stage.Databases {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, kind)
			theirs := fill(t, s)
			target := s.Queue("late", nil)
			s.Queue("forbidden", nil)
			rolledBack := theirs.RollBack(letter("late", "rolled back"))[0].String()
			v := s.Verify(verifier.Options{}) // of another ledger
			s.WaitDepth(s.Topology.DeadQueue(), 5)
			v.Stop()
			var list deadMessages
			s.json(&list, "dead", "list")
			forbidden, malformed := list.by(t, "not-allowed"), list.by(t, "malformed")

			for _, c := range []struct {
				tool    *tool
				id, why string
			}{
				{s.tool, rolledBack, "it belongs to ledger " + theirs.Ledger.Identity().String() + ", not to the one at hand"},
				{s.also("BRIDGE_DATABASE_URL="), rolledBack, "BRIDGE_DATABASE_URL is not set, so its ledger cannot be asked"},
				{theirs.tool, rolledBack, "it has no row in the ledger: rolled back, still open, or forwarded before"},
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
			s.WaitDepth(s.Topology.DeadQueue(), 5)

			// A malformed one needs to be told where; the others go where they wanted to.
			r := s.run("dead", "replay", "--all", "--yes", "--force")
			if r.Code != 1 || !strings.Contains(r.Stdout, "4 messages replayed, 1 not") || !strings.Contains(r.Stderr, "1 of 5 messages not replayed") {
				t.Errorf("exit code %d, it says\n%s%s", r.Code, r.Stdout, r.Stderr)
			}
			s.WaitDepth(target, 3)
			s.WaitDepth("forbidden", 1)
			r = s.run("dead", "replay", malformed, "--to=:late")
			if r.Code != 1 || s.Depth(target) != 3 {
				t.Errorf("without force: exit code %d, %s", r.Code, r.Stdout)
			}
			s.must("dead", "replay", malformed, "--to=:late", "--force")
			last := s.Receive(target, 4)[3]
			if string(last.Body) != "\x1b[31m\xffgarbage" || last.MessageId != "" || last.Type != "odd" || len(last.Headers) != 1 || last.Headers["colour"] != "blue" {
				t.Errorf("the malformed one came as %+v", last)
			}
			s.WaitDepth(s.Topology.DeadQueue(), 0)
		})
	}
}

// A verifier on the wrong database has judged nothing. With the right one, the rows say
// what is committed.
func TestReplayFindsOutWhatAForeignVerifierCouldNotKnow(t *testing.T) {
	t.Parallel()
	for _, kind := range stage.Databases {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			wrong := newScene(t, kind)
			right := sceneOn(t, stage.On(t, kind, wrong.AMQP, wrong.Topology))
			target := right.Queue("late", nil)
			right.StageSingly()
			committed := right.Commit(letter(target, "committed"))[0].String()
			right.RollBack(letter(target, "rolled back"))
			v := wrong.Verify(verifier.Options{})
			wrong.WaitDepth(wrong.Topology.DeadQueue(), 2)
			v.Stop()

			r := right.run("dead", "replay", "--reason=foreign", "--yes")
			if r.Code != 1 || !strings.Contains(r.Stdout, "1 message replayed, 1 not") || !strings.Contains(r.Stdout, "its row was in the ledger") {
				t.Errorf("exit code %d, it says\n%s%s", r.Code, r.Stdout, r.Stderr)
			}
			if d := right.Receive(target, 1)[0]; !isLetter(d, committed, "committed") {
				t.Errorf("it came as %+v", d)
			}
			if n := right.Rows(); n != 0 {
				t.Errorf("%d rows are left", n)
			}
			right.WaitDepth(right.Topology.DeadQueue(), 1)
		})
	}
}

// What the broker itself has moved has not been judged: a group, taken apart.
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
	if err := d.Reject(false); err != nil {
		t.Fatal(err)
	}
	s.WaitDepth(s.Topology.DeadQueue(), 1)
	var list deadMessages
	s.json(&list, "dead", "list", "--reason=broker")
	if len(list.Messages) != 1 || list.Messages[0].Text != `moved by the broker from queue "staging": rejected` {
		t.Fatalf("%+v", list)
	}
	s.must("dead", "replay", ids[1]) // one of its members
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

// A missing exchange closes the channel, with whatever is in flight there.
func TestReplayKeepsBackOnlyWhatItsTargetDoesNotTake(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	good, full := s.Queue("good", nil), s.Queue("full", amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	var want []string
	for range 20 {
		want = append(want, s.bury(t, good, 3)...)
		s.bury(t, full, 1)
		s.bury(t, "missing", 1)
		id := uuid.Must(uuid.NewV7())
		publishing, err := wire.Encode(bridge.Message{ID: id, Exchange: "missing", RoutingKey: "k"}, s.Ledger.Identity())
		if err != nil {
			t.Fatal(err)
		}
		publishing.Headers[wire.HeaderDeadVerdict] = "committed"
		if err := s.Broker.Publish(t.Context(), []bridge.Outgoing{{Target: bridge.Target{RoutingKey: s.Topology.DeadQueue()}, Publishing: publishing}}); err != nil {
			t.Fatal(err)
		}
	}
	s.WaitDepth(s.Topology.DeadQueue(), 120)
	r := s.run("dead", "replay", "--all", "--yes")
	if r.Code != 1 || !strings.Contains(r.Stderr, "60 of 120 messages not replayed") {
		t.Errorf("exit code %d, %s", r.Code, r.Stderr)
	}
	for _, words := range []string{"no queue is bound to its target", "its target refuses it, as a full queue does", "the broker refuses it: Exception (404)"} {
		if strings.Count(r.Stdout, words) != 20 {
			t.Errorf("%q is said %d times\n%s", words, strings.Count(r.Stdout, words), r.Stdout)
		}
	}
	s.WaitDepth(s.Topology.DeadQueue(), 60)
	came := make(map[string]int)
	for _, d := range s.peek(t, good) {
		came[d.MessageId]++
	}
	for _, id := range want {
		if came[id] == 0 {
			t.Errorf("message %s is lost", id)
		}
	}
	if len(came) != len(want) {
		t.Errorf("%d messages came, not %d", len(came), len(want))
	}
	s.must("dead", "replay", "--all", "--yes", "--to=:"+good)
	s.WaitDepth(s.Topology.DeadQueue(), 0)
}

// SIGKILL between the arrival at the target and the ack of the dead copy: there are
// two, with the same ID.
func TestAReplayThatIsKilledLosesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		reply      bool
		at         servertest.Method
		dead, rows int
	}{
		{"before the confirm", true, servertest.BasicAck, 1, 1},
		{"before the ack", false, servertest.BasicAck, 1, 1},
		{"before the row is deleted", false, servertest.BasicQos, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			wrong := newScene(t, stage.Postgres)
			s := sceneOn(t, stage.On(t, stage.Postgres, wrong.AMQP, wrong.Topology))
			target := s.Queue("target", nil)
			s.StageSingly() // a group's member is as good, but counts otherwise
			id := s.Commit(letter(target, "x"))[0].String()
			v := wrong.Verify(verifier.Options{})
			s.WaitDepth(s.Topology.DeadQueue(), 1)
			v.Stop()

			g, through := servertest.NewGate(t, s.AMQP, func(f servertest.Frame) bool { return f.Reply == c.reply && f.Method == c.at })
			p := s.also("BRIDGE_AMQP_URL="+through).start("dead", "replay", id)
			g.Reached(t)
			s.WaitDepth(target, 1)
			if n := s.Depth(s.Topology.DeadQueue()); n != 0 {
				t.Errorf("%d messages are ready in the dead queue", n)
			}
			if !p.Kill() {
				t.Fatalf("it had ended before it was killed: %s", p.Stdout.String()+p.Stderr.String())
			}
			s.WaitDepth(s.Topology.DeadQueue(), c.dead)
			if n := s.Rows(); n != c.rows {
				t.Errorf("%d rows in the ledger", n)
			}
			if c.dead == 0 {
				return
			}
			s.must("dead", "replay", id)
			for _, d := range s.Receive(target, 2) {
				if !isLetter(d, id, "x") {
					t.Errorf("it came as %+v", d)
				}
			}
			s.WaitDepth(s.Topology.DeadQueue(), 0)
			if n := s.Rows(); n != 0 {
				t.Errorf("%d rows in the ledger at the end", n)
			}
		})
	}
}

// Killed again and again, at any moment.
func TestReplaysKilledAtRandomMomentsLoseNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	target := s.Queue("target", nil)
	const n = 2000
	ids := s.bury(t, target, n)
	s.WaitDepth(s.Topology.DeadQueue(), n)
	kills := 0
	for i := range 6 {
		before := s.Depth(target)
		p := s.start("dead", "replay", "--all", "--yes", "--limit=10000")
		s.Eventually("some more have arrived", func() bool { return s.Depth(target) > before+7*i })
		if p.Kill() {
			kills++
		}
	}
	if kills < 3 {
		t.Errorf("only %d were killed before they had ended", kills)
	}
	// The last one's messages come back some time after its death.
	var came map[string]int
	s.Eventually("all have come", func() bool {
		if r := s.run("dead", "replay", "--all", "--yes", "--limit=10000"); r.Code != 0 {
			t.Fatalf("exit code %d: %s", r.Code, r.Stderr)
		}
		came = make(map[string]int)
		for _, d := range s.peek(t, target) {
			if came[d.MessageId]++; !isLetter(d, d.MessageId, d.MessageId) {
				t.Fatalf("it came as %+v", d)
			}
		}
		return len(came) == n
	})
	s.WaitDepth(s.Topology.DeadQueue(), 0)
	twice := 0
	for _, id := range ids {
		switch came[id] {
		case 0:
			t.Errorf("message %s is lost", id)
		case 1:
		default:
			twice++
		}
	}
	if len(came) != n {
		t.Errorf("%d messages came, not %d", len(came), n)
	}
	t.Logf("%d kills, %d of %d came more than once", kills, twice, n)
}
