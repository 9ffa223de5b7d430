package bridgectl_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// An operator sees delayed messages with list, status, message and doctor, cancels one, and has
// one staged at once.
func TestDelayedMessagesAreListedCancelledAndStagedAtOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.Postgres)
	queue := s.Queue("target", nil)
	hour := time.Now().Add(time.Hour).Truncate(time.Second)
	var ids []string
	for i := range 4 {
		m := letter(queue, fmt.Sprint(i))
		m.NotBefore = hour.Add(time.Duration(i) * time.Minute)
		ids = append(ids, s.Commit(m)[0].String())
	}
	type delayedList struct {
		At       time.Time
		Messages []struct {
			ID    string
			Until time.Time
			Size  int
		}
	}
	expect := func(want ...string) {
		t.Helper()
		var list delayedList
		s.json(&list, "delayed", "list")
		var got []string
		for _, m := range list.Messages {
			got = append(got, m.ID)
			if m.Until.Before(hour) || m.Until.After(hour.Add(time.Hour)) || m.Size < 10 || list.At.After(m.Until) {
				t.Errorf("%+v at %v", m, list.At)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v are delayed, not %v", got, want)
		}
	}
	expect(ids...)
	until := hour.UTC().Format(time.RFC3339)
	if text := s.must("delayed", "list", "--limit=2"); !strings.Contains(text, ids[0]) || !strings.Contains(text, until) || !strings.Contains(text, "the first 2 delayed messages; there may be more") {
		t.Errorf("it says %s", text)
	}
	if text := s.must("status"); !strings.Contains(text, "4 delayed; the next one until "+until) {
		t.Errorf("status says %s", text)
	}
	var status struct {
		Ledger struct {
			Delayed struct {
				Waiting int
				Next    time.Time
				Overdue *time.Time
			}
		}
	}
	if s.json(&status, "status"); status.Ledger.Delayed.Waiting != 4 || !status.Ledger.Delayed.Next.Equal(hour) || status.Ledger.Delayed.Overdue != nil {
		t.Errorf("status says %+v", status)
	}
	if text := s.must("message", ids[0]); !strings.Contains(text, "It is delayed until "+until) || !strings.Contains(text, "no copy of it was published") || strings.Contains(text, "\nrecorded ") {
		t.Errorf("message says %s", text)
	}
	if text := strings.Join(strings.Fields(s.run("doctor").Stdout), " "); !strings.Contains(text, "wait for their time: 4; the next, "+ids[0]+", until "+until) {
		t.Errorf("the doctor says %s", text)
	}

	s.fails(2, "this deletes messages permanently: confirm with --yes", "delayed", "cancel", ids[0])
	if text := s.must("delayed", "cancel", "--yes", ids[0]); !strings.Contains(text, ids[0]+": cancelled") || !strings.Contains(text, "1 message cancelled") {
		t.Errorf("it says %s", text)
	}
	expect(ids[1:]...)
	if text := s.must("delayed", "now", ids[2]); !strings.Contains(text, ids[2]+": due now") {
		t.Errorf("it says %s", text)
	}
	expect(ids[1], ids[3])
	if s.json(&status, "status"); status.Ledger.Delayed.Waiting != 2 || status.Ledger.Delayed.Overdue == nil {
		t.Errorf("status says %+v", status)
	}
	notDone := func(reason string, args ...string) {
		t.Helper()
		if r := s.run(args...); r.Code != 1 || !strings.Contains(r.Stdout, reason) || !strings.Contains(r.Stdout, "0 messages") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	notDone("its time has come", "delayed", "now", ids[2])
	// A due row that is not yet claimed can still be cancelled: only the verifier's claim ends
	// that.
	s.Verify(verifier.Options{})
	if d := s.Receive(queue, 1)[0]; d.MessageId != ids[2] {
		t.Errorf("received %s, not %s", d.MessageId, ids[2])
	}
	s.Eventually("the row is deleted", func() bool { return s.Rows() == 2 })
	for _, action := range [][]string{{"now"}, {"cancel", "--yes"}} {
		notDone("no committed row carries it", slices.Concat([]string{"delayed"}, action, []string{ids[0], ids[2], uuid.NewString()})...)
	}
	s.fails(2, "is not a message ID", "delayed", "now", "x")
	expect(ids[1], ids[3])
}
