package idempotency_test

import (
	"errors"
	"math"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
)

// One event with a version that is far too high makes all later ones stale, until a Reset.
func TestAResetLetsAnEntityGoOn(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	latest, err := idempotency.NewLatest(r.inbox, "latest", versionOf, handBack)
	must(t, err)
	take := func(events ...string) {
		t.Helper()
		for _, event := range events {
			must(t, latest.Handle(t.Context(), r.db, r.event(event), placeOrder(event)))
		}
	}
	take("a:1", "a:9000000000000000000", "a:2", "b:2")
	must(t, latest.Reset(t.Context(), r.db, "a", 2))
	take("a:2", "a:3")
	must(t, latest.Reset(t.Context(), r.db, "a", -1))
	take("a:0")
	r.wantOrders("a:1 a:9000000000000000000 b:2 a:3 a:0")
	if err := latest.Reset(t.Context(), r.db, "a", -2); err == nil {
		t.Error("a version below -1 was set")
	}

	highWater, err := idempotency.NewHighWater(r.inbox, "high water", keyOf, handBack)
	must(t, err)
	for _, event := range []string{"c:1", "c:9", "c:3"} {
		must(t, highWater.Handle(t.Context(), r.db, r.event(event), placeOrder(event)))
	}
	must(t, highWater.Reset(t.Context(), r.db, "c", "3"))
	must(t, highWater.Handle(t.Context(), r.db, r.event("c:4"), placeOrder("c:4")))
	r.wantOrders("a:1 a:9000000000000000000 b:2 a:3 a:0 c:1 c:9 c:4")
	wantStats(t, highWater.Stats(), idempotency.Stats{Handled: 3, Duplicates: 1})
}

// A version function that knows the bounds of its versions has such an event dead-lettered.
func TestAVersionFunctionMayRefuseAVersionThatCannotBe(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	latest, err := idempotency.NewLatest(r.inbox, "latest", func(d amqp.Delivery) (string, int64, error) {
		entity, version, err := versionOf(d)
		if version > math.MaxInt32 {
			err = errors.New("no customer changes so often")
		}
		return entity, version, err
	}, &idempotency.Options{DeadLetterExchange: true})
	must(t, err)
	for _, event := range []string{"a:1", "a:9000000000000000000", "a:2"} {
		must(t, latest.Handle(t.Context(), r.db, r.event(event), placeOrder(event)))
	}
	r.wantOrders("a:1 a:2")
	wantStats(t, latest.Stats(), idempotency.Stats{Handled: 2, DeadLettered: 1})
}
