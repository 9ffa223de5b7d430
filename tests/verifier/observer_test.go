package verifier_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// recordingObserver keeps the events and errors that it observes.
type recordingObserver struct {
	mu       sync.Mutex
	events   []verifier.Event
	sessions []error
}

func (a *recordingObserver) Done(e verifier.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, e)
}

func (a *recordingObserver) SessionEnded(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sessions = append(a.sessions, err)
}

func (a *recordingObserver) doneEvents() []verifier.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.events)
}

func (a *recordingObserver) ends() []error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.sessions)
}

func TestAnObserverGetsTheEndOfEachMessage(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	before := time.Now()
	forwarded := s.Commit(stage.To(queue, "committed"), stage.To(queue, "too"))
	dropped := s.RollBack(stage.To(queue, "rolled back"))
	dead := s.Commit(bridge.Message{Exchange: "nowhere", RoutingKey: "x"})
	var a recordingObserver
	s.Verify(verifier.Options{Observer: &a, Unroutable: time.Millisecond, Patience: stage.Patience}) // nothing is set aside
	s.Eventually("four events", func() bool { return len(a.doneEvents()) == 4 })
	got := make(map[string]verifier.Event)
	for _, e := range a.doneEvents() {
		got[e.ID] = e
	}
	for _, want := range []struct {
		id      string
		verdict verifier.Verdict
		reason  string
		order   func(verifier.Event) []time.Time
	}{
		{forwarded[0].String(), verifier.Forwarded, "", allTimes},
		{forwarded[1].String(), verifier.Forwarded, "", allTimes},
		{dropped[0].String(), verifier.Dropped, "", func(e verifier.Event) []time.Time {
			if !e.Safe.IsZero() {
				t.Errorf("a dropped message is safe since %v", e.Safe)
			}
			return []time.Time{e.Received, e.Judged, e.Done}
		}},
		{dead[0].String(), verifier.DeadLettered, "unroutable", allTimes},
	} {
		e, ok := got[want.id]
		if !ok || e.Verdict != want.verdict || e.Reason != want.reason || e.Message.ID.String() != want.id {
			t.Errorf("message %s: want %s %q, got %+v", want.id, want.verdict, want.reason, e)
			continue
		}
		times := want.order(e)
		if !slices.IsSortedFunc(times, time.Time.Compare) || times[0].Before(before) || time.Now().Before(times[len(times)-1]) {
			t.Errorf("message %s: times %v", want.id, times)
		}
	}
	if ends := a.ends(); len(ends) != 0 {
		t.Errorf("sessions ended: %v", ends)
	}
}

func allTimes(e verifier.Event) []time.Time {
	return []time.Time{e.Received, e.Judged, e.Safe, e.Done}
}

func TestTheStateShowsTheWaitingMessages(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	full := s.Queue("full", map[string]any{"x-max-length": 0, "x-overflow": "reject-publish"})
	before := time.Now().Add(-time.Second)
	tx, ids := s.Begin(stage.To(queue, "first"))
	v := s.Verify(verifier.Options{Patience: stage.Patience})
	s.Eventually("the first waits", func() bool { return v.State().Waiting.Transaction == 1 })
	other, _ := s.Begin(stage.To(queue, "second"))
	s.Commit(stage.To(full, "held"))
	s.Eventually("two wait, and one for a full queue", func() bool {
		state := v.State()
		return state.Waiting.Transaction == 2 && len(state.Targets) == 1 && state.Targets[0].Messages == 1
	})
	state := v.State()
	if state.Session.Before(before) || state.Err != nil || state.Held != 3 || len(state.Oldest) != 2 {
		t.Errorf("state %+v", state)
	}
	oldest := state.Oldest[0]
	if oldest.ID != ids[0].String() || oldest.Target.RoutingKey != queue || oldest.Since.Before(before) || !oldest.Since.Before(state.Oldest[1].Since) {
		t.Errorf("oldest %+v", oldest)
	}
	if got := state.Targets[0].Target.RoutingKey; got != full {
		t.Errorf("target %q is held", got)
	}
	s.Eventually("a lookup waits", func() bool { return v.State().Settling > 0 })
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := other.Commit(); err != nil {
		t.Fatal(err)
	}
	s.Receive(queue, 1)
	s.Eventually("only the held one is left", func() bool { state := v.State(); return state.Waiting.Transaction == 0 && state.Held == 1 })
}
