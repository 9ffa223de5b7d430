package idempotency_test

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
)

// A function of the receiver may end its goroutine, like FailNow of a test. The call does not
// return, but its delivery ends.
func TestADeliveryWhoseGoroutineEndsIsHandedBack(t *testing.T) {
	for name, c := range map[string]struct {
		opts   idempotency.Options
		handle func(r *receiver) error
		said   []string
		failed uint64
	}{
		"in the handler": {idempotency.Options{}, func(r *receiver) error {
			return r.dedup.Handle(r.T.Context(), r.DB, r.Delivery("m1"), func(ctx context.Context, tx *sql.Tx) error {
				receivertest.Must(r.T, receivertest.PlaceOrder("m1")(ctx, tx))
				receivertest.Goexit()
				return nil
			})
		}, []string{"requeue 1"}, 0},
		"in the handler of a batch": {idempotency.Options{}, func(r *receiver) error {
			return r.dedup.HandleBatch(r.T.Context(), r.DB, r.deliveries("m1", "m2"), func(context.Context, *sql.Tx, []amqp.Delivery) error {
				receivertest.Goexit()
				return nil
			})
		}, []string{"requeue 1", "requeue 2"}, 0},
		"while it is dead-lettered": {idempotency.Options{Attempts: 1, DeadLetter: func(context.Context, amqp.Delivery, error) error {
			receivertest.Goexit()
			return nil
		}}, func(r *receiver) error {
			return r.dedup.Handle(r.T.Context(), r.DB, r.Delivery("m1"), receivertest.Failing)
		}, []string{"requeue 1"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t, c.opts)
			var consumer sync.WaitGroup
			consumer.Go(func() { t.Errorf("the call came back: %v", c.handle(r)) })
			consumer.Wait()
			r.WantSaid(c.said...)
			r.WantRows(0, 0)
			r.wantStats(idempotency.Stats{HandedBack: uint64(len(c.said)), FailedAttempts: c.failed})
			receivertest.Must(t, r.dedup.Handle(t.Context(), r.DB, r.Delivery("m3"), receivertest.PlaceOrder("m3"))) // no transaction is open
			if log := r.Log.String(); !strings.Contains(log, "runtime.Goexit") || !strings.Contains(log, "message_id=m1") {
				t.Errorf("the log is\n%s", log)
			}
		})
	}
}
