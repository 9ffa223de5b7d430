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

var errDeadlock = errors.New("deadlock")

func (steadyInbox) Transient(err error) bool { return errors.Is(err, errDeadlock) }

// Each event leads to one state. Only a doubt keeps the run, which may still end it.
func TestEachEventLeadsToOneState(t *testing.T) {
	g, err := New(steadyInbox{}, "mailer", &Options{HandBack: true, Attempts: 3, MinDelay: time.Second, MaxDelay: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWorker(steadyInbox{}, "mailer", &WorkerOptions{HandBack: true, Attempts: 3, MinDelay: time.Second, MaxDelay: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("no such mailbox")
	pause := [2]time.Duration{1, 3 * time.Second}
	for name, c := range map[string]struct {
		event          event
		attempt        int
		cause          error
		remove, bare   bool
		state          driver.State
		attempts       int
		due            [2]time.Duration
		itsRun         bool
		message, error string
	}{
		"begun": {event: begun, attempt: 1, state: driver.Started, attempts: 2,
			due: [2]time.Duration{2 * time.Minute, 2 * time.Minute}, error: "before"},
		"leased": {event: leased, attempt: 2, state: driver.Ready, attempts: 3,
			due: [2]time.Duration{75 * time.Second, 75 * time.Second}, error: "before"},
		"leased without an attempt left": {event: leased, attempt: 3, state: driver.Failed, attempts: 3,
			error: "attempt 3 recorded no result: its worker died, or could not reach the database; the error before: before"},
		"asked":                      {event: asked, attempt: 1, state: driver.Doubtful, attempts: 1, itsRun: true, due: pause, error: "before"},
		"done":                       {event: done, attempt: 1, remove: true},
		"released":                   {event: released, attempt: 2, cause: refused, bare: true, state: driver.Ready, attempts: 2, due: pause, error: "no such mailbox"},
		"in doubt":                   {event: unclear, attempt: 1, cause: refused, state: driver.Doubtful, attempts: 1, itsRun: true, message: "m", error: "no such mailbox"},
		"failed":                     {event: failed, attempt: 2, cause: refused, state: driver.Ready, attempts: 2, due: pause, error: "no such mailbox"},
		"failed for the last time":   {event: failed, attempt: 3, cause: refused, state: driver.Failed, attempts: 3, error: "no such mailbox"},
		"failed for good":            {event: failed, attempt: 1, cause: backoff.Permanent(refused), state: driver.Failed, attempts: 1, error: "no such mailbox"},
		"excused":                    {event: excused, attempt: 3, cause: idempotency.RetryLater(refused, 0), state: driver.Ready, attempts: 2, due: pause, error: "no such mailbox"},
		"interrupted":                {event: interrupted, attempt: 3, state: driver.Ready, attempts: 2, error: "before"},
		"to be tried again, decided": {event: again, attempt: 3, state: driver.Ready, attempts: 0, error: "before"},
	} {
		mine := driver.Pending{Key: "k", State: driver.Started, Run: "run", Attempts: c.attempt, Error: "before", Message: []byte("m")}
		rows := g.messages
		if c.event == leased {
			rows = w.messages
		}
		got := rows.transition(mine, c.event, c.cause)
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
		if got.due < c.due[0] || got.due > c.due[1] {
			t.Errorf("%s: due in %v", name, got.due)
		}
		if (next.Run == "run") != c.itsRun {
			t.Errorf("%s: its run is %q", name, next.Run)
		}
	}
}

// The other transaction of the deadlock is over, so the message need not wait as for an outage.
func TestThePausesAfterDeadlocksGrow(t *testing.T) {
	w, err := NewWorker(steadyInbox{}, "mailer", &WorkerOptions{HandBack: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	pause := func() time.Duration {
		return w.transition(driver.Pending{Key: "k", Attempts: 1}, excused, errDeadlock).due
	}
	const least = 100 * time.Millisecond // the default of MinDelay
	for range 2 {
		if due := pause(); due > 2*least {
			t.Errorf("the first pause is %v", due)
		}
		for range 20 {
			pause()
		}
		if due := pause(); due != 10*time.Second {
			t.Errorf("a late pause is %v", due)
		}
		w.keys.ClearFailures("k")
	}
}
