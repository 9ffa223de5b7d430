package bridgectl_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// status is the answer of the command status.
type status struct {
	At     time.Time
	Queues []struct {
		Name, Role       string
		Ready, Consumers int
		Held             *int
		In, Out          *float64
	}
	Ledger *struct {
		Identity      uuid.UUID
		Rows, Orphans *int
		Carried       *int
		Due           *int `json:"carried_due"`
		Open          []inspect.Holder
	}
	Failures []string
}

// ready returns the number of ready messages in the queue of a role; -1 if there is no such
// queue.
func (s status) ready(role string) int {
	for _, q := range s.Queues {
		if q.Role == role {
			return q.Ready
		}
	}
	return -1
}

// age moves a row's recorded_at into the past.
func (s *scene) age(t *testing.T, id uuid.UUID, by time.Duration) {
	t.Helper()
	result, err := s.DB.ExecContext(t.Context(), `UPDATE bridge_ledger SET recorded_at = recorded_at - $1 * interval '1 second' WHERE id = $2`, by.Seconds(), id)
	must(t, err)
	if n, err := result.RowsAffected(); n != 1 || err != nil {
		t.Fatalf("%d rows aged, %v", n, err)
	}
}

func TestStatusShowsTheStateOfTheBridge(t *testing.T) {
	t.Parallel()
	s := sceneOn(t, stage.On(t, stage.Postgres, servertest.Vhost(t), bridge.Topology{Queue: "shop", Audit: 10}))
	s.deadLetter(letter("t", ""), letter("t", ""), letter("t", ""), letter("t", ""))
	s.StageSingly()
	old := s.Commit(letter("t", "1"), letter("t", "2"))[0]
	s.age(t, old, 8*24*time.Hour)
	delayed := s.CommitCarried(letter("t", "7"), letter("t", "8"), letter("t", "9"))[0]
	s.age(t, delayed, time.Hour) // its new stage time is ten minutes away
	must(t, s.Ledger.Touch(t.Context(), []uuid.UUID{delayed}))
	tx, _ := s.Begin(letter("t", "6"))
	defer func() { _ = tx.Rollback() }()

	var got status
	s.json(&got, "status", "--open-for=0s")
	for role, want := range map[string]int{"staging": 3, "waiting": 0, "dead": 4, "audit": 0} {
		if got.ready(role) != want {
			t.Errorf("%d ready in the %s queue, not %d", got.ready(role), role, want)
		}
	}
	l := got.Ledger
	if l == nil || l.Identity != s.Ledger.Identity() || *l.Rows != 2 || *l.Orphans != 1 || *l.Carried != 3 || *l.Due != 2 {
		t.Fatalf("ledger %+v", l)
	}
	if len(l.Open) != 1 || l.Open[0].Session == "" || time.Since(l.Open[0].Since) > time.Hour {
		t.Errorf("open transactions %+v", l.Open)
	}
	if got.Queues[0].Held != nil || got.Queues[0].In != nil {
		t.Errorf("known without the management API: %+v", got.Queues[0])
	}
	text := s.must("status", "--open-for=0s")
	for _, want := range []*regexp.Regexp{
		regexp.MustCompile(`(?m)^shop +3 +- +0 +- +-$`),
		regexp.MustCompile(`(?m)^shop\.dead +4 `),
		regexp.MustCompile(`(?m)^` + l.Identity.String() + ` +2 +3 +2 +1 `),
	} {
		if !want.MatchString(text) {
			t.Errorf("it says\n%swithout %s", text, want)
		}
	}
	// Only the management API counts messages that a consumer holds.
	if _, ok, err := s.Channel.Get("shop", false); err != nil || !ok {
		t.Fatal(err)
	}
	tool := s.managed(t)
	s.Eventually("one is held", func() bool {
		got = status{}
		tool.json(&got, "status")
		q := got.Queues[0]
		return q.Held != nil && *q.Held == 1 && q.In != nil && q.Out != nil
	})
	// One refused question costs no other answer.
	if _, err := s.DB.ExecContext(t.Context(), "ALTER FUNCTION bridge_due RENAME TO kept"); err != nil {
		t.Fatal(err)
	}
	r := s.run("status", "--open-for=0s")
	if !regexp.MustCompile(`(?m)^`+l.Identity.String()+` +2 +3 +- +1 +1$`).MatchString(r.Stdout) || !strings.Contains(r.Stdout, "failed: ") || r.Code != 1 {
		t.Errorf("without a function: exit code %d\n%s", r.Code, r.Stdout)
	}
}
