package pending

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
)

type steadyInbox struct{ driver.Inbox }

func (steadyInbox) Transient(error) bool { return false }

// Each ending of a run leads to one state. Only a doubt keeps the run, which may still end it.
func TestEachEndingOfARunLeadsToOneState(t *testing.T) {
	g, err := New(steadyInbox{}, "mailer", &Options{HandBack: true, Attempts: 3, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("no such mailbox")
	for name, c := range map[string]struct {
		how            ending
		attempt        int
		cause          error
		remove, bare   bool
		state          driver.State
		attempts       int
		pauses, itsRun bool
		message, error string
	}{
		"done":                       {how: done, attempt: 1, remove: true},
		"released":                   {how: released, attempt: 2, cause: refused, bare: true, state: driver.Ready, attempts: 2, pauses: true, error: "no such mailbox"},
		"in doubt":                   {how: unclear, attempt: 1, cause: refused, state: driver.Doubtful, attempts: 1, itsRun: true, message: "m", error: "no such mailbox"},
		"failed":                     {how: failed, attempt: 2, cause: refused, state: driver.Ready, attempts: 2, pauses: true, error: "no such mailbox"},
		"failed for the last time":   {how: failed, attempt: 3, cause: refused, state: driver.Failed, attempts: 3, error: "no such mailbox"},
		"failed for good":            {how: failed, attempt: 1, cause: backoff.Permanent(refused), state: driver.Failed, attempts: 1, error: "no such mailbox"},
		"failed without blame":       {how: failed, attempt: 3, cause: idempotency.RetryLater(refused, 0), state: driver.Ready, attempts: 2, pauses: true, error: "no such mailbox"},
		"interrupted":                {how: interrupted, attempt: 3, state: driver.Ready, attempts: 2, error: "before"},
		"to be tried again, decided": {how: again, attempt: 3, state: driver.Ready, attempts: 0, error: "before"},
	} {
		mine := driver.Pending{Key: "k", State: driver.Started, Run: "run", Attempts: c.attempt, Error: "before", Message: []byte("m")}
		got := g.transition(mine, c.how, c.cause)
		if got.remove != c.remove || got.unclaim != c.bare {
			t.Errorf("%s: the row goes: %t, if it is bare: %t", name, got.remove, got.unclaim)
		}
		if c.remove {
			continue
		}
		next := got.next
		if next.Key != "k" || next.State != c.state || next.Attempts != c.attempts || next.Error != c.error || string(next.Message) != c.message {
			t.Errorf("%s: next is %+v", name, next)
		}
		if pauses := got.due > 0; pauses != c.pauses || got.due > time.Minute*3/2 {
			t.Errorf("%s: due in %v", name, got.due)
		}
		if (next.Run == "run") != c.itsRun {
			t.Errorf("%s: its run is %q", name, next.Run)
		}
	}
}
