package versions_test

import (
	"errors"
	"math"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/versions"
)

// One event with a version that is far too high makes all later ones stale, until a Reset.
func TestAResetLetsAnEntityGoOn(t *testing.T) {
	r := newReceiver(t)
	latest, err := versions.NewLatest(r.Inbox, "latest", receivertest.VersionOf, handBack)
	receivertest.Must(t, err)
	take := func(events ...string) {
		t.Helper()
		for _, event := range events {
			receivertest.Must(t, latest.Handle(t.Context(), r.DB, r.event(event), receivertest.PlaceOrder(event)))
		}
	}
	take("a:1", "a:9000000000000000000", "a:2", "b:2")
	receivertest.Must(t, latest.Reset(t.Context(), r.DB, "a", 2))
	take("a:2", "a:3")
	receivertest.Must(t, latest.Reset(t.Context(), r.DB, "a", -1))
	take("a:0")
	r.wantOrders("a:1 a:9000000000000000000 b:2 a:3 a:0")
	if err := latest.Reset(t.Context(), r.DB, "a", -2); err == nil {
		t.Error("a version below -1 was set")
	}

	highWater, err := versions.NewHighWater(r.Inbox, "high water", receivertest.KeyOf, handBack)
	receivertest.Must(t, err)
	for _, event := range []string{"c:1", "c:9", "c:3"} {
		receivertest.Must(t, highWater.Handle(t.Context(), r.DB, r.event(event), receivertest.PlaceOrder(event)))
	}
	receivertest.Must(t, highWater.Reset(t.Context(), r.DB, "c", "3"))
	receivertest.Must(t, highWater.Handle(t.Context(), r.DB, r.event("c:4"), receivertest.PlaceOrder("c:4")))
	r.wantOrders("a:1 a:9000000000000000000 b:2 a:3 a:0 c:1 c:9 c:4")
	receivertest.WantStats(t, highWater.Stats(), idempotency.Stats{Handled: 3, Duplicates: 1})
}

// A version function that checks the bounds of its versions can have such an event dead-lettered.
func TestAVersionFunctionMayRefuseAVersionThatCannotBe(t *testing.T) {
	r := newReceiver(t)
	latest, err := versions.NewLatest(r.Inbox, "latest", func(d amqp.Delivery) (string, int64, error) {
		entity, version, err := receivertest.VersionOf(d)
		if version > math.MaxInt32 {
			err = errors.New("no customer changes so often")
		}
		return entity, version, err
	}, &versions.Options{DeadLetterExchange: true})
	receivertest.Must(t, err)
	for _, event := range []string{"a:1", "a:9000000000000000000", "a:2"} {
		receivertest.Must(t, latest.Handle(t.Context(), r.DB, r.event(event), receivertest.PlaceOrder(event)))
	}
	r.wantOrders("a:1 a:2")
	receivertest.WantStats(t, latest.Stats(), idempotency.Stats{Handled: 2, DeadLettered: 1})
}
