package verifier

import (
	"testing"
	"time"
)

// In a quiet system withheld messages circulate ever more slowly. A committed message makes them
// fast again.
func TestWithheldMessagesTurnSlowlyWhereNothingCommits(t *testing.T) {
	began := time.Now()
	e := &evidence{began: began}
	for quiet, want := range map[time.Duration]time.Duration{0: 0, 4 * time.Second: time.Second, time.Hour: longestWithheld} {
		if got := e.stayTime(began.Add(quiet)); got != want {
			t.Errorf("after %v they stay for %v, must stay for %v", quiet, got, want)
		}
	}
	e.isNeeded(began.Add(time.Hour))
	if got := e.stayTime(began.Add(time.Hour)); got != 0 {
		t.Errorf("after a commit they stay for %v", got)
	}
}

// Messages that another verifier has judged meanwhile no longer count as withheld.
func TestNothingIsWithheldOnceTheMessagesAreGone(t *testing.T) {
	e := &evidence{began: time.Now()}
	now := e.began
	e.noteWithheld(now)
	for range 3 {
		now = now.Add(longestWithheld)
		e.refresh(now, 1)
	}
	if _, since := e.state(); !since.Equal(e.began) {
		t.Errorf("withheld since %v, must be %v", since, e.began)
	}
	now = now.Add(2 * longestWithheld)
	e.refresh(now, 0) // messages may be circulating
	if _, since := e.state(); since.IsZero() {
		t.Error("none is withheld, though they may go round")
	}
	e.refresh(now.Add(time.Millisecond), 0)
	if _, since := e.state(); !since.IsZero() {
		t.Errorf("withheld since %v, must be none", since)
	}
	if e.reportDue(now.Add(time.Hour), time.Second) {
		t.Error("messages that are gone are logged")
	}
}
