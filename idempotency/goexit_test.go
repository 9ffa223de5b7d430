package idempotency_test

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
)

// A function of the receiver's may end its goroutine, as FailNow of a test does. The call does
// not return, but has come to its end all the same.
func TestADeliveryWhoseGoroutineEndsIsHandedBack(t *testing.T) {
	for name, c := range map[string]struct {
		opts   idempotency.Options
		handle func(r *receiver) error
		failed uint64
		keys   int
	}{
		"in the handler": {idempotency.Options{}, func(r *receiver) error {
			return r.guard.Handle(r.t.Context(), r.db, r.delivery("m1"), func(ctx context.Context, tx *sql.Tx) error {
				must(r.t, placeOrder("m1")(ctx, tx))
				goexit()
				return nil
			})
		}, 0, 0},
		"in the effect": {idempotency.Options{}, func(r *receiver) error {
			return r.guard.AtMostOnce(r.t.Context(), r.db, r.delivery("m1"), func(context.Context, amqp.Delivery) error {
				goexit()
				return nil
			})
		}, 0, 1},
		"while it is dead-lettered": {idempotency.Options{Attempts: 1, DeadLetter: func(context.Context, amqp.Delivery, error) error {
			goexit()
			return nil
		}}, func(r *receiver) error { return r.guard.Handle(r.t.Context(), r.db, r.delivery("m1"), failing) }, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t, c.opts)
			var consumer sync.WaitGroup
			consumer.Go(func() { t.Errorf("the call came back: %v", c.handle(r)) })
			consumer.Wait()
			r.wantSaid("requeue 1")
			r.wantRows(0, c.keys)
			r.wantStats(idempotency.Stats{HandedBack: 1, FailedAttempts: c.failed})
			must(t, r.guard.Handle(t.Context(), r.db, r.delivery("m2"), placeOrder("m2"))) // no transaction is open
			if log := r.log.String(); !strings.Contains(log, "runtime.Goexit") || !strings.Contains(log, "message_id=m1") {
				t.Errorf("the log is\n%s", log)
			}
		})
	}
}
