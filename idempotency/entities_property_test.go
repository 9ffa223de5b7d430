package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/idempotency"
)

// A world is a queue, and a receiver that may fail in every way that a receiver can:
// what is not acked is delivered again.
type world struct {
	*receiver
	keeper   *faultyKeeper
	consumer string   // a new one for each check, as its memory
	queue    []string // of events
	faults   bool
}

func checkEach(t *testing.T, check func(t *rapid.T, w *world)) {
	r := newReceiver(t, idempotency.Options{})
	keeper := newKeeper(t, r)
	rapid.Check(t, func(t *rapid.T) {
		if _, err := r.db.ExecContext(context.Background(), `DELETE FROM orders`); err != nil {
			t.Fatal(err)
		}
		w := &world{receiver: r, keeper: keeper, consumer: uuid.NewString(), faults: true}
		check(t, w)
	})
}

// withLog is opts with the receiver's log.
func withLog(w *world, opts idempotency.Options) *idempotency.Options {
	opts.Logger = slog.New(slog.NewTextHandler(w.log, nil))
	return &opts
}

var hasty = idempotency.Options{Attempts: 2, MinDelay: 1, MaxDelay: 1, Hold: 5 * time.Second, DeadLetterExchange: true}

// said is the last word to the broker.
type said struct {
	amqp.Acknowledger
	acked, requeued bool
}

// deliver delivers the event at a place of the queue, with a fault that rapid draws.
// handle gets what may go wrong in the handler. The event stays in the queue if it is
// not acked.
func (w *world) deliver(t *rapid.T, place int, handle func(ctx context.Context, d amqp.Delivery, trouble func() error) error) {
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
		switch fault {
		case "handler":
			once = false
			return errHandler
		case "panic":
			once = false
			panic("out of range")
		case "shutdown":
			once = false
			cancel()
			return ctx.Err()
		}
		return nil
	}
	defer func() { w.receiver.faults.commit = nil }()
	switch fault {
	case "no lock":
		w.keeper.failures.Store(1)
	case "no commit", "no answer to the commit":
		w.receiver.faults.commit = func(commit func() error) error {
			w.receiver.faults.commit = nil
			if fault == "no commit" {
				return errNetwork
			}
			return errors.Join(commit(), errNetwork)
		}
	}
	d := w.event(event)
	d.Acknowledger = word
	err := handle(ctx, d, trouble)
	switch {
	case fault == "no ack" && word.acked: // the channel was closed: it comes again
	case word.acked && err == nil:
		w.queue = slices.Delete(w.queue, place, place+1)
	case word.requeued && errors.Is(err, idempotency.ErrHandedBack):
	default:
		t.Fatalf("event %s: %v, and told the broker %+v", event, err, *word)
	}
}

func (s *said) Ack(uint64, bool) error { s.acked = true; return nil }

func (s *said) Close() error { s.requeued = true; return nil }

func (s *said) IsClosed() bool { return false }

func (s *said) Nack(_ uint64, _, requeue bool) error {
	s.requeued = requeue
	return nil
}

// drain lets all happen that rapid likes, and then delivers what is left without a
// fault. next says which may come next.
func (w *world) drain(t *rapid.T, next func(t *rapid.T) int, deliver func(place int)) {
	for steps := rapid.IntRange(0, 30).Draw(t, "steps"); steps > 0 && len(w.queue) > 0; steps-- {
		deliver(next(t))
	}
	w.faults = false
	for len(w.queue) > 0 {
		deliver(next(t))
	}
}

func (w *world) anyPlace(t *rapid.T) int { return rapid.IntRange(0, len(w.queue)-1).Draw(t, "place") }

// handledOf returns the versions of an entity in the order in which they were handled.
func (w *world) handledOf(entity string) (versions []string) {
	for _, text := range strings.Fields(w.orderTexts()) {
		if version, ok := strings.CutPrefix(text, entity+":"); ok {
			versions = append(versions, version)
		}
	}
	return versions
}

var entities = []string{"a", "b"}

// Whatever order and however often: each event takes effect once at most, in the
// order of versions, and the last effect is that of the highest version.
func TestLatestEndsWithTheLatestWhateverHappens(t *testing.T) {
	checkEach(t, func(t *rapid.T, w *world) {
		latest, err := idempotency.NewLatest(w.keeper, w.consumer, versionOf, withLog(w, hasty))
		if err != nil {
			t.Fatal(err)
		}
		highest := make(map[string]int)
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			entity, version := rapid.SampledFrom(entities).Draw(t, "entity"), rapid.IntRange(0, 9).Draw(t, "version")
			w.queue = append(w.queue, fmt.Sprint(entity, ":", version))
			if before, ok := highest[entity]; !ok || version > before {
				highest[entity] = version
			}
		}
		w.drain(t, w.anyPlace, func(place int) {
			w.deliver(t, place, func(ctx context.Context, d amqp.Delivery, trouble func() error) error {
				return latest.Handle(ctx, w.db, d, func(ctx context.Context, tx *sql.Tx) error {
					return errors.Join(placeOrder(string(d.Body))(ctx, tx), trouble())
				})
			})
		})
		for _, entity := range entities {
			versions := w.handledOf(entity)
			want, ok := highest[entity]
			if !slices.IsSorted(versions) || len(slices.Compact(slices.Clone(versions))) != len(versions) {
				t.Fatalf("of %s were handled %v", entity, versions)
			}
			if ok && (len(versions) == 0 || versions[len(versions)-1] != fmt.Sprint(want)) {
				t.Fatalf("of %s were handled %v, the last must be %d", entity, versions, want)
			}
		}
	})
}

// Whatever order and however often: each event takes effect once, in the order of
// versions, and nothing stays behind.
func TestOrderedHandlesAllInOrderWhateverHappens(t *testing.T) {
	checkEach(t, func(t *rapid.T, w *world) {
		ordered, err := idempotency.NewOrdered(w.keeper, w.consumer, versionOf, &idempotency.OrderedOptions{Options: *withLog(w, hasty)})
		if err != nil {
			t.Fatal(err)
		}
		last := make(map[string]int)
		for _, entity := range entities {
			last[entity] = rapid.IntRange(0, 7).Draw(t, "events of "+entity)
			for version := 1; version <= last[entity]; version++ {
				for range rapid.IntRange(1, 2).Draw(t, "copies") {
					w.queue = append(w.queue, fmt.Sprint(entity, ":", version))
				}
			}
		}
		deliver := func(place int) {
			w.deliver(t, place, func(ctx context.Context, d amqp.Delivery, trouble func() error) error {
				return ordered.Handle(ctx, w.db, d, func(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
					return errors.Join(placeOrder(string(event.Body))(ctx, tx), trouble())
				})
			})
		}
		w.drain(t, w.anyPlace, deliver)
		// A kept event that failed waits for the next delivery.
		for _, entity := range entities {
			if last[entity] > 0 {
				w.queue = append(w.queue, entity+":1")
				deliver(0)
			}
		}
		for _, entity := range entities {
			var want []string
			for version := 1; version <= last[entity]; version++ {
				want = append(want, fmt.Sprint(version))
			}
			if versions := w.handledOf(entity); !slices.Equal(versions, want) {
				t.Fatalf("of %s were handled %v, must be %v", entity, versions, want)
			}
		}
		if gaps, err := ordered.Gaps(context.Background(), w.db, 10); err != nil || len(gaps) > 0 {
			t.Fatalf("gaps %v are left (%v)", gaps, err)
		}
	})
}

// In order, and however often: each message takes effect once, and one row is kept
// for each source.
func TestHighWaterHandlesEachOnceWhateverHappensInOrder(t *testing.T) {
	checkEach(t, func(t *rapid.T, w *world) {
		highWater, err := idempotency.NewHighWater(w.keeper, w.consumer, keyOf, withLog(w, hasty))
		if err != nil {
			t.Fatal(err)
		}
		want := make(map[string][]string)
		next := map[string]int{}
		for range rapid.IntRange(1, 12).Draw(t, "messages") {
			entity := rapid.SampledFrom(entities).Draw(t, "source")
			next[entity] += rapid.IntRange(1, 90).Draw(t, "step") // keys may leave holes
			key := fmt.Sprintf("%04d", next[entity])
			want[entity] = append(want[entity], key)
			for range rapid.IntRange(1, 2).Draw(t, "copies") {
				w.queue = append(w.queue, entity+":"+key)
			}
		}
		w.drain(t, func(*rapid.T) int { return 0 }, func(place int) {
			w.deliver(t, place, func(ctx context.Context, d amqp.Delivery, trouble func() error) error {
				return highWater.Handle(ctx, w.db, d, func(ctx context.Context, tx *sql.Tx) error {
					return errors.Join(placeOrder(string(d.Body))(ctx, tx), trouble())
				})
			})
		})
		for _, entity := range entities {
			if keys := w.handledOf(entity); !slices.Equal(keys, want[entity]) {
				t.Fatalf("of %s were handled %v, must be %v", entity, keys, want[entity])
			}
		}
		var rows int
		err = w.db.QueryRowContext(context.Background(), `SELECT count(*) FROM bridge_mark WHERE consumer = ?`, w.consumer).Scan(&rows)
		if err != nil || rows != len(want) {
			t.Fatalf("%d rows for %d sources (%v)", rows, len(want), err)
		}
	})
}
