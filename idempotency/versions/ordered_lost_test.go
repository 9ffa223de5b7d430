package versions_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/versions"
)

// For example a statement larger than the server accepts. Other deliveries of its entity are
// handled or kept themselves, and do not occupy a consumer until Hold ends.
func TestAKeptEventThatLosesItsConnectionEachTimeStopsItsEntityOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newOrdered(t, versions.OrderedOptions{Options: versions.Options{Hold: time.Hour, MaxDelay: time.Minute}})
		kills := true
		handler := func(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
			if kills && string(event.Body) == "a:2" {
				r.Faults.KillAll()
				return receivertest.ErrNetwork
			}
			return r.handler(ctx, tx, event)
		}
		start := time.Now()
		for _, event := range []string{"a:2", "a:1", "a:3", "b:1"} {
			receivertest.Must(t, r.Handle(t.Context(), r.DB, r.event(event), handler))
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("took %v", took)
		}
		r.wantOrders("a:1 b:1")
		r.WantSaid("ack 1", "ack 2", "ack 3", "ack 4")
		r.wantGaps(versions.Gap{Entity: "a", Missing: 2, First: 2, Kept: 2})
		receivertest.WantStats(t, r.Ordered.Stats(), idempotency.Stats{Handled: 2, Kept: 2, FailedAttempts: 2})
		if log := r.Log.String(); strings.Count(log, "kept event failed, its entity waits") != 2 || !strings.Contains(log, receivertest.ErrNetwork.Error()) {
			t.Errorf("the log is\n%s", log)
		}
		kills = false
		receivertest.Must(t, r.Handle(t.Context(), r.DB, r.event("a:1"), handler)) // a duplicate also continues with kept events
		r.wantOrders("a:1 b:1 a:2 a:3")
	})
}

// A shutdown is no failure: the delivery comes again, and continues with the kept events.
func TestAShutdownWhileAKeptEventIsHandledLeavesTheDeliveryUnacked(t *testing.T) {
	r := newOrdered(t, versions.OrderedOptions{Options: versions.Options{MinDelay: 1, MaxDelay: 1, Drain: -1}})
	r.take("a:2")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	runs := 0
	err := r.Handle(ctx, r.DB, r.event("a:1"), func(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
		if string(event.Body) != "a:2" {
			return r.handler(ctx, tx, event)
		}
		if runs++; runs == 3 {
			stop()
			return ctx.Err()
		}
		r.Faults.KillAll()
		return receivertest.ErrNetwork
	})
	if !errors.Is(err, idempotency.ErrLeftUnacked) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	r.WantSaid("ack 1")
	receivertest.WantStats(t, r.Ordered.Stats(), idempotency.Stats{Kept: 1, LeftUnacked: 1})
	r.take("a:1")
	r.wantOrders("a:1 a:2")
}
