package bridgectl_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// carried list stages no message and moves no stage time.
func TestCarriedListShowsTheDueMessages(t *testing.T) {
	t.Parallel()
	for _, kind := range []stage.Database{stage.Postgres, stage.SQLite} {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, kind)
			var want []string
			for _, id := range s.CommitCarried(letter("target", "1"), letter("target", "2"), letter("target", "3")) {
				want = append(want, id.String())
			}
			type list struct {
				At       time.Time
				Messages []struct {
					ID         string
					RecordedAt time.Time `json:"recorded_at"`
					StageAt    time.Time `json:"stage_at"`
					Size       int
					Published  bool
				}
			}
			var first, second list
			s.json(&first, "carried", "list")
			var got []string
			for _, m := range first.Messages {
				got = append(got, m.ID)
				if m.Published || !m.StageAt.Equal(m.RecordedAt) || first.At.Before(m.StageAt) || first.At.Sub(m.StageAt) > time.Hour || m.Size < 10 {
					t.Errorf("%+v at %v", m, first.At)
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%v are due, not %v", got, want)
			}
			if text := s.must("carried", "list", "--limit=2"); !strings.Contains(text, "the first 2 carried messages past the stage time; there may be more") {
				t.Errorf("it says %s", text)
			}
			s.fails(2, "--limit: must be 1 to 500", "carried", "list", "--limit=501")
			moved := uuid.MustParse(want[2])
			must(t, s.Ledger.Touch(t.Context(), []uuid.UUID{moved}))
			if text := s.must("carried", "list"); !strings.Contains(text, "2 carried messages past the stage time") || strings.Contains(text, want[2]) {
				t.Errorf("with one that is not due it says %s", text)
			}
			if text := s.must("carried", "list", "--all"); !strings.Contains(text, "3 carried messages\n") || !regexp.MustCompile(`(?m)^`+want[2]+` .* in \S+ +\S+ \S+ +yes$`).MatchString(text) {
				t.Errorf("of all it says %s", text)
			}
			s.json(&first, "carried", "list", "--all")
			if s.json(&second, "carried", "list", "--all"); !slices.Equal(second.Messages, first.Messages) {
				t.Errorf("%+v became %+v by looking", first, second)
			}
			if n := s.Depth(s.Topology.Queue); n != 0 {
				t.Errorf("%d messages were staged by looking", n)
			}
			// No copy of a delayed message is published, even if the requested time has fractions of a
			// second, which SQLite does not store.
			delayed := letter("target", "4")
			delayed.NotBefore = time.Now().Add(time.Hour).Truncate(time.Second).Add(300 * time.Millisecond)
			id := s.Commit(delayed)[0].String()
			if text := s.must("carried", "list", "--all"); !regexp.MustCompile(`(?m)^` + id + ` .* in \S+ +\S+ \S+ +no$`).MatchString(text) {
				t.Errorf("with a delayed one it says %s", text)
			}
		})
	}
}

func TestOrphansAreListedByAgeAndSweptWhileTheQueuesAreEmpty(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.Postgres)
	ids := s.Commit(letter("t", "1"), letter("t", "2"), letter("t", "3"))
	s.age(t, ids[0], 9*24*time.Hour)
	s.age(t, ids[1], 2*time.Hour)
	var list struct {
		Orphans []struct {
			ID         string
			RecordedAt time.Time `json:"recorded_at"`
		}
	}
	expect := func(want []uuid.UUID, args ...string) {
		t.Helper()
		s.json(&list, append([]string{"orphans"}, args...)...)
		var got []string
		for _, o := range list.Orphans {
			got = append(got, o.ID)
		}
		var texts []string
		for _, id := range want {
			texts = append(texts, id.String())
		}
		if !slices.Equal(got, texts) {
			t.Errorf("%v: %v, not %v", args, got, texts)
		}
	}
	expect(ids[:1], "list")
	if age := time.Since(list.Orphans[0].RecordedAt); age < 9*24*time.Hour || age > 10*24*time.Hour {
		t.Errorf("it is %v old", age)
	}
	expect(ids[:2], "list", "--older-than=1h")
	expect(ids[:1], "list", "--older-than=1h", "--limit=1")
	s.fails(1, `queue "staging" is not empty: 1 message ready; sweep later, or with --force`, "orphans", "sweep")
	if n := s.Rows(); n != 3 {
		t.Fatalf("%d rows are left", n)
	}
	expect(ids[:1], "sweep", "--force")
	if _, err := s.Channel.QueuePurge(s.Topology.Queue, false); err != nil {
		t.Fatal(err)
	}
	// The doctor cannot rule out that the young message is still in flight.
	s.managed(t).until(func(d diagnosis, _ int) bool { return d.has("lost messages", inspect.Warning, "1 committed row") }) // the API's counts lag
	expect(ids[1:2], "sweep", "--older-than=1h")
	expect(nil, "sweep", "--older-than=1h")
	if n := s.Rows(); n != 1 {
		t.Errorf("%d rows are left, not the young one", n)
	}
}

// Messages in an ordered queue count as in flight.
func TestTheOrderedQueuesAreQueuesOfTheVerifiers(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.SQLite)
	tool := s.tool.also("BRIDGE_ORDERED_SHARDS=2")
	tool.must("topology", "declare")
	must(t, s.Channel.Publish("", "staging.ordered.1", true, false, amqp.Publishing{Body: []byte("x")}))
	s.WaitDepth("staging.ordered.1", 1)
	tool.fails(1, `queue "staging.ordered.1" is not empty: 1 message ready; sweep later, or with --force`, "orphans", "sweep")
	if text := tool.must("message", uuid.NewString()); !strings.Contains(text, "If it is still in the queues of the verifiers (1 message)") {
		t.Errorf("message says %s", text)
	}
}

// messageFacts is the answer of the command message.
type messageFacts struct {
	ID     uuid.UUID
	Ledger *struct {
		State      string
		RecordedAt *time.Time `json:"recorded_at"`
		Holders    []inspect.Holder
		Carried    *struct {
			ID        uuid.UUID
			StageAt   time.Time `json:"stage_at"`
			Size      int
			Published bool
		}
	}
	Dead    *struct{ Found []struct{ Reason string } }
	Dropped *struct{ At []time.Time }
	Inbox   []struct{ Consumer, State string }
	Meaning []string
	Next    string
}

func TestMessageShowsWhereAMessageIs(t *testing.T) {
	t.Parallel()
	s := sceneOn(t, stage.On(t, stage.Postgres, servertest.Vhost(t), bridge.Topology{Queue: "staging", Audit: 10}))
	target := s.Queue("target", nil)
	look := func(id uuid.UUID, args ...string) (f messageFacts) {
		t.Helper()
		s.json(&f, append([]string{"message", id.String()}, args...)...)
		if f.ID != id || f.Ledger == nil || f.Dead == nil {
			t.Fatalf("%+v", f)
		}
		return f
	}
	dead := uuid.MustParse(s.deadLetter(letter("nowhere", ""))[0])
	f := look(dead)
	if len(f.Dead.Found) != 1 || f.Dead.Found[0].Reason != "unroutable" {
		t.Errorf("dead: %+v", f.Dead)
	}

	f = look(uuid.Must(uuid.NewV7()))
	if f.Ledger.State != "absent" || len(f.Meaning) == 0 || f.Next != "Nothing." {
		t.Errorf("unknown: %+v", f)
	}

	id := s.Commit(letter(target, "1"))[0]
	f = look(id)
	if f.Ledger.State != "committed" || time.Since(*f.Ledger.RecordedAt) > time.Hour {
		t.Errorf("committed: %+v", f.Ledger)
	}
	s.WaitDepth(s.Topology.Queue, 1)

	tx, ids := s.Begin(letter(target, "2"))
	f = look(ids[0])
	if f.Ledger.State != "open" || len(f.Ledger.Holders) != 1 {
		t.Errorf("open: %+v", f.Ledger)
	}
	must(t, tx.Rollback())
	f = look(ids[0])
	if f.Ledger.State != "absent" {
		t.Errorf("rolled back: %+v", f.Ledger)
	}

	carried := s.CommitCarried(letter(target, "3"))[0]
	if f = look(carried); f.Ledger.State != "committed" || f.Ledger.Carried == nil || f.Ledger.Carried.ID != carried || f.Ledger.Carried.Size == 0 || !strings.HasPrefix(f.Next, "No copy of it was published") {
		t.Errorf("carried: %+v", f)
	}
	// The row is not due and no queue has its message, as when the broker refuses the message.
	s.age(t, carried, time.Hour)
	must(t, s.Ledger.Touch(t.Context(), []uuid.UUID{carried}))
	if text := s.must("message", carried.String()); !strings.Contains(text, ", stage time ") || !strings.Contains(text, " (in ") {
		t.Errorf("a row that is not due: %s", text)
	}
	f = look(carried)
	if c := f.Ledger.Carried; c == nil || !c.Published || time.Until(c.StageAt) < time.Minute || strings.Contains(f.Next, "own data") || strings.Contains(f.Next, "weep") {
		t.Errorf("a row that is not due: %+v", f)
	}
	s.age(t, carried, -time.Hour)
	if _, err := s.DB.ExecContext(t.Context(), "UPDATE bridge_ledger SET stage_at = now() WHERE id = $1", carried); err != nil {
		t.Fatal(err)
	}

	v := s.Verify(verifier.Options{})
	s.Receive(target, 2)
	s.WaitDepth(s.Topology.AuditQueue(), 1)
	s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	v.Stop()
	if f = look(ids[0]); f.Dropped == nil || len(f.Dropped.At) != 1 {
		t.Errorf("dropped: %+v", f.Dropped)
	}
	s.WaitDepth(s.Topology.AuditQueue(), 1)
	s.WaitDepth(s.Topology.DeadQueue(), 1)
}

func TestMessageAsksTheInbox(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.Postgres)
	tool := s.also("BRIDGE_INBOX_URL="+program.DatabaseURL(t, s.DatabaseURL), "BRIDGE_AMQP_URL=")
	tool.must("migrate", "up", "--inbox")
	id := uuid.Must(uuid.NewV7())
	for _, statement := range []string{
		`INSERT INTO bridge_inbox (consumer, key) VALUES ('emails', '` + id.String() + `'), ('other', 'x'), ('stock', '` + id.String() + `')`,
		`INSERT INTO bridge_inbox_pending (consumer, message_key, state, run, attempts, since_ms, due_ms, error)
		 VALUES ('stock', '` + id.String() + `', 'doubtful', 'r', 2, 1, 1, 'shelf fell')`,
	} {
		if _, err := s.DB.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	var f messageFacts
	tool.json(&f, "message", id.String())
	if len(f.Inbox) != 3 || f.Inbox[0].State != "done" || f.Inbox[1].State != "" || f.Inbox[2].State != "doubtful" {
		t.Errorf("%+v", f.Inbox)
	}
	tool.json(&f, "message", id.String(), "--consumer=other")
	if len(f.Inbox) != 1 || f.Inbox[0].Consumer != "other" {
		t.Errorf("of one consumer: %+v", f.Inbox)
	}
}
