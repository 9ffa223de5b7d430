package versions_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/versions"
)

// A world is a queue, and a receiver with every kind of failure: unacked messages are delivered
// again.
type world struct {
	*receiver
	strategy
	queue  []string // of events
	faults bool
}

// checkEach applies random faults to a queue, and then delivers the remaining events without a
// fault. Only inOrder events come in their order. check gets the handled events of each entity.
func checkEach(t *testing.T, strategy string, inOrder bool, draw func(t *rapid.T, entity string) (events []string),
	check func(t *rapid.T, w *world, entity string, events, handled []string)) {
	r := newReceiver(t)
	rapid.Check(t, func(t *rapid.T) {
		if _, err := r.DB.ExecContext(context.Background(), `DELETE FROM orders; DELETE FROM bridge_kept`); err != nil {
			t.Fatal(err)
		}
		w := &world{receiver: r, faults: true, strategy: r.strategies(uuid.NewString(), // a consumer without earlier rows
			versions.Options{Attempts: 2, MinDelay: 1, MaxDelay: 1, Hold: 5 * time.Second, DeadLetterExchange: true})[strategy]}
		all := make(map[string][]string)
		for _, entity := range []string{"a", "b"} {
			all[entity] = draw(t, entity)
			for _, event := range all[entity] {
				for range rapid.IntRange(1, 2).Draw(t, "copies") {
					w.queue = append(w.queue, entity+":"+event)
				}
			}
		}
		next := func() (place int) {
			if !inOrder {
				place = rapid.IntRange(0, len(w.queue)-1).Draw(t, "place")
			}
			return place
		}
		for steps := rapid.IntRange(0, 30).Draw(t, "steps"); steps > 0 && len(w.queue) > 0; steps-- {
			w.deliver(t, next())
		}
		w.faults = false
		for len(w.queue) > 0 {
			w.deliver(t, next())
		}
		for entity, events := range all {
			check(t, w, entity, events, w.handledOf(entity))
		}
	})
}

// said records the last call to the broker.
type said struct {
	amqp.Acknowledger
	acked, requeued bool
}

// deliver delivers the event at a place of the queue, with a random fault. The event stays in the
// queue if it is not acked.
func (w *world) deliver(t *rapid.T, place int) {
	event := w.queue[place]
	fault := "none"
	if w.faults {
		fault = rapid.SampledFrom([]string{"none", "none", "none", "handler", "panic", "shutdown", "no lock",
			"no commit", "no answer to the commit", "no ack"}).Draw(t, "fault of "+event)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	word := &said{}
	once := true
	trouble := func() error {
		if !once {
			return nil
		}
		once = false
		switch fault {
		case "handler":
			return receivertest.ErrHandler
		case "panic":
			panic("out of range")
		case "shutdown":
			cancel()
			return ctx.Err()
		}
		return nil
	}
	defer func() { w.Faults.OnCommit = nil }()
	switch fault {
	case "no lock":
		w.Inbox.Failures.Store(2) // as often as a handler may fail
	case "no commit", "no answer to the commit":
		w.Faults.OnCommit = func(commit func() error) error {
			w.Faults.OnCommit = nil
			if fault == "no commit" {
				return receivertest.ErrNetwork
			}
			return errors.Join(commit(), receivertest.ErrNetwork)
		}
	}
	d := w.event(event)
	d.Acknowledger = word
	err := w.strategy.handle(ctx, w.DB, d, func(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
		return errors.Join(placeEvent(ctx, tx, event), trouble())
	})
	switch {
	case fault == "no ack" && word.acked: // the channel was closed, so it comes again
	case word.acked && err == nil:
		w.queue = slices.Delete(w.queue, place, place+1)
	case word.requeued && errors.Is(err, idempotency.ErrHandedBack):
	case fault == "shutdown" && *word == (said{}) && errors.Is(err, idempotency.ErrLeftUnacked): // the end of the channel returns it
	default:
		t.Fatalf("event %s: %v, and sent the broker %+v", event, err, *word)
	}
}

func (s *said) Ack(uint64, bool) error { s.acked = true; return nil }

func (s *said) Close() error { s.requeued = true; return nil }

func (s *said) IsClosed() bool { return false }

func (s *said) Nack(_ uint64, _, requeue bool) error {
	s.requeued = requeue
	return nil
}

// handledOf returns the versions of an entity in the order in which they were handled.
func (w *world) handledOf(entity string) (versions []string) {
	for _, text := range strings.Fields(w.orderTexts()) {
		if version, ok := strings.CutPrefix(text, entity+":"); ok {
			versions = append(versions, version)
		}
	}
	return versions
}

// In any order and with any repetition: each event takes effect at most once, in the order of
// versions, and the last effect is the highest version's.
func TestLatestEndsWithTheLatestHoweverEventsArrive(t *testing.T) {
	t.Parallel()
	checkEach(t, "Latest", false, func(t *rapid.T, entity string) []string {
		return rapid.SliceOfN(rapid.StringMatching("[0-9]"), 0, 6).Draw(t, "versions of "+entity)
	}, func(t *rapid.T, _ *world, entity string, events, handled []string) {
		if !slices.IsSorted(handled) || len(slices.Compact(slices.Clone(handled))) != len(handled) {
			t.Fatalf("of %s were handled %v", entity, handled)
		}
		if len(events) > 0 && (len(handled) == 0 || handled[len(handled)-1] != slices.Max(events)) {
			t.Fatalf("of %s were handled %v, the last must be %s", entity, handled, slices.Max(events))
		}
	})
}

// In any order and with any repetition: each event takes effect once, in the order of versions, and
// no event stays kept.
func TestOrderedHandlesAllInOrderHoweverEventsArrive(t *testing.T) {
	t.Parallel()
	checkEach(t, "Ordered", false, func(t *rapid.T, entity string) (versions []string) {
		for version := range rapid.IntRange(0, 7).Draw(t, "events of "+entity) {
			versions = append(versions, fmt.Sprint(version+1))
		}
		return versions
	}, func(t *rapid.T, w *world, entity string, events, _ []string) {
		if len(events) > 0 { // a kept event that failed waits for the next delivery
			w.queue = append(w.queue, entity+":1")
			w.deliver(t, 0)
		}
		if handled := w.handledOf(entity); !slices.Equal(handled, events) {
			t.Fatalf("of %s were handled %v, must be %v", entity, handled, events)
		}
		var kept int
		err := w.DB.QueryRowContext(context.Background(), `SELECT count(*) FROM bridge_kept WHERE entity = ?`, entity).Scan(&kept)
		if err != nil || kept > 0 {
			t.Fatalf("%d are still kept of %s (%v)", kept, entity, err)
		}
	})
}

// In order, with any repetition: each message takes effect once.
func TestHighWaterHandlesEachOnceHoweverOftenItArrives(t *testing.T) {
	t.Parallel()
	checkEach(t, "HighWater", true, func(t *rapid.T, source string) (keys []string) {
		key := 0
		for range rapid.IntRange(0, 6).Draw(t, "messages of "+source) {
			key += rapid.IntRange(1, 90).Draw(t, "step") // keys may leave holes
			keys = append(keys, fmt.Sprintf("%04d", key))
		}
		return keys
	}, func(t *rapid.T, _ *world, source string, keys, handled []string) {
		if !slices.Equal(handled, keys) {
			t.Fatalf("of %s were handled %v, must be %v", source, handled, keys)
		}
	})
}
