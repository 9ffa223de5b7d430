package versions_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/versions"
)

// An orderedReceiver is a receiver whose events are handled in order; each stores its text.
type orderedReceiver struct {
	*receiver
	*versions.Ordered
	fail map[string]error // by text
}

func newOrdered(t *testing.T, opts versions.OrderedOptions) *orderedReceiver {
	t.Helper()
	r := &orderedReceiver{receiver: newReceiver(t), fail: make(map[string]error)}
	opts.Logger = slog.New(slog.NewTextHandler(r.Log, nil))
	opts.HandBack = !opts.DeadLetterExchange && opts.DeadLetter == nil
	var err error
	r.Ordered, err = versions.NewOrdered(r.Inbox, "shop", receivertest.VersionOf, &opts)
	receivertest.Must(t, err)
	return r
}

func (r *orderedReceiver) handler(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
	if err := receivertest.PlaceOrder(string(event.Body))(ctx, tx); err != nil {
		return err
	}
	return r.fail[string(event.Body)]
}

// take handles events, which must all be acked or dead-lettered.
func (r *orderedReceiver) take(events ...string) {
	r.T.Helper()
	for _, event := range events {
		if err := r.Handle(context.Background(), r.DB, r.event(event), r.handler); err != nil {
			r.T.Errorf("handle %s: %v", event, err)
		}
	}
}

func (r *orderedReceiver) wantGaps(want ...versions.Gap) {
	r.T.Helper()
	gaps, err := r.Gaps(context.Background(), r.DB, 100)
	receivertest.Must(r.T, err)
	if len(gaps) != len(want) {
		r.T.Fatalf("gaps are %+v, must be %+v", gaps, want)
	}
	for i := range gaps {
		gaps[i].Age = 0
		if gaps[i] != want[i] {
			r.T.Errorf("gap is %+v, must be %+v", gaps[i], want[i])
		}
	}
}

func TestTheFirstVersionIsAsConfiguredAndTheGreatestIsNoEnd(t *testing.T) {
	for _, start := range []int64{0, 57, math.MaxInt64 - 1} {
		r := newOrdered(t, versions.OrderedOptions{Start: &start})
		first, second := fmt.Sprint("a:", start), fmt.Sprint("a:", start+1)
		r.take(second)
		r.wantGaps(versions.Gap{Entity: "a", Missing: start, First: start + 1, Kept: 1})
		if start > 0 {
			r.take(fmt.Sprint("a:", start-1)) // before the first version: a duplicate
		}
		r.take(first, second)
		r.wantOrders(first + " " + second)
		r.wantGaps()
	}
}

func TestKeptEventsAreBounded(t *testing.T) {
	var reason error
	r := newOrdered(t, versions.OrderedOptions{MaxKept: 2, MaxKeptBytes: 1000, Options: versions.Options{
		DeadLetter: func(_ context.Context, _ amqp.Delivery, why error) error { reason = why; return nil }}})
	r.take("a:2", "a:3")
	if reason != nil {
		t.Fatalf("dead-lettered for %v", reason)
	}
	r.take("a:4")
	if reason == nil || !strings.Contains(reason.Error(), "2 events of it are kept already") {
		t.Errorf("dead-lettered for %v", reason)
	}
	r.take("a:3") // a copy does not count as another one
	large := r.event("b:2")
	large.Headers = amqp.Table{"pad": strings.Repeat("x", 1000)}
	receivertest.Must(t, r.Handle(t.Context(), r.DB, large, r.handler))
	if !strings.Contains(reason.Error(), "too large to be kept") {
		t.Errorf("dead-lettered for %v", reason)
	}
	r.take("a:1", "a:4")
	r.wantOrders("a:1 a:2 a:3 a:4")
	receivertest.WantStats(t, r.Ordered.Stats(), idempotency.Stats{Handled: 2, Kept: 2, Released: 2, Duplicates: 1, DeadLettered: 2})
}

func TestAKeptEventThatFailsStopsItsEntityAndIsTriedAgain(t *testing.T) {
	r := newOrdered(t, versions.OrderedOptions{})
	r.fail["a:2"] = receivertest.ErrHandler
	r.take("a:2", "a:3", "a:1", "b:1")
	r.wantOrders("a:1 b:1")
	r.wantGaps(versions.Gap{Entity: "a", Missing: 2, First: 2, Kept: 2})
	r.take("a:4") // triggers one more attempt
	r.wantOrders("a:1 b:1")
	if log := r.Log.String(); strings.Count(log, "kept event failed") != 2 || !strings.Contains(log, `message_id="id of a:2"`) {
		t.Errorf("the log is\n%s", log)
	}
	delete(r.fail, "a:2")
	r.take("a:1") // a duplicate also continues with kept events
	r.wantOrders("a:1 b:1 a:2 a:3 a:4")
	receivertest.WantStats(t, r.Ordered.Stats(), idempotency.Stats{Handled: 2, Kept: 3, Released: 3, Duplicates: 1, FailedAttempts: 2})
}

// The delivery of version n is not acked before the events that it has released are handled or have
// failed. If the database is unavailable, the delivery waits.
func TestADatabaseThatGoesAwayBetweenTwoEventsLosesNeither(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newOrdered(t, versions.OrderedOptions{Options: versions.Options{Attempts: 1, DeadLetterExchange: true, Hold: time.Minute}})
		r.take("a:2", "a:3")
		commits := 0
		r.Faults.OnCommit = func(commit func() error) error {
			if commits++; commits == 2 { // of a:2
				r.Inbox.Failures.Store(3)
				return receivertest.ErrNetwork
			}
			return commit()
		}
		r.take("a:1")
		r.wantOrders("a:1 a:2 a:3")
		r.WantSaid("ack 1", "ack 2", "ack 3")
		receivertest.WantStats(t, r.Ordered.Stats(), idempotency.Stats{Handled: 1, Kept: 2, Released: 2})

		r.take("b:2")
		err := r.Handle(t.Context(), r.DB, r.event("b:1"), func(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
			r.Inbox.Failures.Store(1 << 30) // from the commit on
			return r.handler(ctx, tx, event)
		})
		if !errors.Is(err, idempotency.ErrHandedBack) || !errors.Is(err, receivertest.ErrNetwork) {
			t.Errorf("got %v", err)
		}
		r.Inbox.Failures.Store(0)
		r.wantOrders("a:1 a:2 a:3 b:1")
		r.take("b:1") // comes again
		r.wantOrders("a:1 a:2 a:3 b:1 b:2")
	})
}

// Between the handling of an event and of a kept one, another consumer may have handled the kept
// one.
func TestAKeptEventThatAnotherHasHandledIsNotHandledAgainNorTheNextTooEarly(t *testing.T) {
	for _, kept := range []string{"a:2", "a:2 a:4"} {
		r := newOrdered(t, versions.OrderedOptions{})
		r.take(strings.Fields(kept)...)
		r.Faults.OnCommit = func(commit func() error) error {
			r.Faults.OnCommit = nil
			err := commit() // of a:1
			r.take("a:1")   // the other consumer gets a copy, and handles a:2
			return err
		}
		r.take("a:1")
		r.wantOrders("a:1 a:2")
	}
}

func TestSkipGivesUpVersionsThatDoNotCome(t *testing.T) {
	r := newOrdered(t, versions.OrderedOptions{})
	r.take("a:1", "a:3")
	for _, through := range []int64{0, 1} {
		if err := r.Skip(t.Context(), r.DB, "a", through, nil); !errors.Is(err, versions.ErrNotWaiting) {
			t.Errorf("skip to %d: %v", through, err)
		}
	}
	receivertest.Must(t, r.Skip(t.Context(), r.DB, "a", 2, nil))
	r.take("a:2") // it comes nevertheless
	r.wantOrders("a:1 a:3")
	r.wantGaps()

	receivertest.Must(t, r.Skip(t.Context(), r.DB, "new", 56, nil)) // this consumer begins at 57
	r.take("new:58", "new:56", "new:57")
	r.wantOrders("a:1 a:3 new:57 new:58")
	if log := r.Log.String(); !strings.Contains(log, "versions skipped") {
		t.Errorf("the log is\n%s", log)
	}
}

func TestSkipHandsOverKeptEvents(t *testing.T) {
	r := newOrdered(t, versions.OrderedOptions{})
	r.fail["a:2"] = receivertest.ErrHandler
	r.take("a:2", "a:4", "a:6", "a:1")
	if err := r.Skip(t.Context(), r.DB, "a", 4, nil); err == nil || !strings.Contains(err.Error(), "is kept") {
		t.Errorf("skip a kept event: %v", err)
	}
	err := r.Skip(t.Context(), r.DB, "a", 4, func(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
		if string(event.Body) == "a:4" {
			return receivertest.ErrHandler
		}
		return receivertest.PlaceOrder("instead of "+string(event.Body))(ctx, tx)
	})
	if !errors.Is(err, receivertest.ErrHandler) {
		t.Errorf("got %v", err)
	}
	r.wantOrders("a:1")
	r.wantGaps(versions.Gap{Entity: "a", Missing: 2, First: 2, Kept: 3})
	receivertest.Must(t, r.Skip(t.Context(), r.DB, "a", 4, func(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
		return receivertest.PlaceOrder("instead of "+string(event.Body))(ctx, tx)
	}))
	r.wantOrders("a:1 instead of a:2 instead of a:4")
	r.wantGaps(versions.Gap{Entity: "a", Missing: 5, First: 6, Kept: 1})
}

func TestWatchReportsAGapOnceAndHandlesDueEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newOrdered(t, versions.OrderedOptions{GapAge: time.Minute})
		r.fail["b:2"] = receivertest.ErrHandler
		r.take("a:3", "b:2", "b:1", "young:2")
		delete(r.fail, "b:2")
		r.Exec(`UPDATE bridge_kept SET kept_at = kept_at - 90 WHERE entity <> 'young'`)

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.Watch(ctx, r.DB, r.handler)
		}()
		time.Sleep(3*time.Minute + time.Second) // of the bubble's clock
		r.wantOrders("b:1 b:2")
		log := r.Log.String()
		if strings.Count(log, "entity waits for a version") != 1 || !strings.Contains(log, "entity=a missing=1 first_kept=3 kept=1") {
			t.Errorf("the log is\n%s", log)
		}
		if n := r.OldGaps(); n != 1 {
			t.Errorf("%d old gaps", n)
		}
		receivertest.Must(t, r.Skip(t.Context(), r.DB, "a", 2, nil))
		r.Inbox.Failures.Store(1) // one round fails
		time.Sleep(2 * time.Minute)
		r.wantOrders("b:1 b:2 a:3")
		time.Sleep(time.Minute)
		if n := r.OldGaps(); n != 0 {
			t.Errorf("%d old gaps", n)
		}
		cancel()
		<-ended
	})
}
