package idempotency_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
)

func TestHighWaterHandlesOnlyKeysAboveTheMark(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	highWater, err := idempotency.NewHighWater(newKeeper(t, r), "shop", keyOf, handBack)
	must(t, err)
	for _, event := range []string{"a:0009", "a:0010", "b:x", "a:0010", "a:0009", "a:0100", "b:y", "b:z", "b:y"} {
		must(t, highWater.Handle(t.Context(), r.db, r.event(event), placeOrder(event)))
	}
	r.wantOrders("a:0009 a:0010 b:x a:0100 b:y b:z")
	wantStats(t, highWater.Stats(), idempotency.Stats{Handled: 6, Duplicates: 3})
	if n := r.rows("bridge_mark"); n != 2 {
		t.Errorf("%d rows for two sources", n)
	}
}

// The price of keeping only the mark, as the comment of HighWater says.
func TestHighWaterTakesAKeyThatComesLateForADuplicate(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	highWater, err := idempotency.NewHighWater(newKeeper(t, r), "shop", keyOf, handBack)
	must(t, err)
	for _, event := range []string{"a:1", "a:3", "a:2"} {
		must(t, highWater.Handle(t.Context(), r.db, r.event(event), placeOrder(event)))
	}
	r.wantOrders("a:1 a:3")
	r.wantSaid("ack 1", "ack 2", "ack 3")
}

// What is handed back comes again, and what was delivered after it on the same channel
// must not go before it.
func TestHighWaterHandlesNothingOfAChannelOnWhichItHandedSomethingBack(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	highWater, err := idempotency.NewHighWater(newKeeper(t, r), "shop", keyOf, handBack)
	must(t, err)
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	first, second := r.event("a:1"), r.event("a:2")
	second.Acknowledger = first.Acknowledger
	if err := highWater.Handle(stopped, r.db, first, mustNotRun(t)); !errors.Is(err, idempotency.ErrHandedBack) {
		t.Errorf("got %v", err)
	}
	if err := highWater.Handle(t.Context(), r.db, second, mustNotRun(t)); !errors.Is(err, idempotency.ErrHandedBack) || !errors.Is(err, amqp.ErrClosed) {
		t.Errorf("got %v", err)
	}
	r.wantSaid("close 0")
	for _, event := range []string{"a:1", "a:2"} { // on another channel
		must(t, highWater.Handle(t.Context(), r.db, r.event(event), placeOrder(event)))
	}
	r.wantOrders("a:1 a:2")
	wantStats(t, highWater.Stats(), idempotency.Stats{HandedBack: 2, Handled: 2})
}

func TestKeysOfDifferentLengthsAreNotCompared(t *testing.T) {
	var reason error
	r := newReceiver(t, idempotency.Options{})
	highWater, err := idempotency.NewHighWater(newKeeper(t, r), "shop", keyOf, &idempotency.Options{Logger: slog.New(slog.DiscardHandler),
		DeadLetter: func(_ context.Context, _ amqp.Delivery, why error) error { reason = why; return nil }})
	must(t, err)
	must(t, highWater.Handle(t.Context(), r.db, r.event("a:9"), placeOrder("a:9")))
	must(t, highWater.Handle(t.Context(), r.db, r.event("a:10"), mustNotRun(t)))
	if reason == nil || !strings.Contains(reason.Error(), "cannot be compared") {
		t.Errorf("dead-lettered for %v", reason)
	}
	wantStats(t, highWater.Stats(), idempotency.Stats{Handled: 1, DeadLettered: 1})
}
