package versions_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/versions"
)

// The longest waiting entity comes first in each round. Whatever its handler does, the others are
// caught up, reported and counted.
func TestAnEntityThatCannotBeCaughtUpWithHoldsUpNoOther(t *testing.T) {
	for name, trouble := range map[string]func(ctx context.Context, r *orderedReceiver) error{
		"its handler loses the connection each time": func(_ context.Context, r *orderedReceiver) error {
			r.Faults.KillAll()
			return receivertest.ErrNetwork
		},
		"its handler never ends": func(ctx context.Context, _ *orderedReceiver) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newOrdered(t, versions.OrderedOptions{GapAge: time.Minute, Options: versions.Options{Hold: 10 * time.Second}})
				r.fail["a:2"], r.fail["b:2"] = receivertest.ErrHandler, receivertest.ErrHandler
				r.take("a:2", "b:2", "a:1", "b:1", "c:2")
				delete(r.fail, "b:2")
				r.Exec(`UPDATE bridge_kept SET kept_at = kept_at - CASE entity WHEN 'a' THEN 300 WHEN 'b' THEN 200 ELSE 100 END`)

				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					r.Watch(ctx, r.DB, func(ctx context.Context, tx *sql.Tx, event amqp.Delivery) error {
						if string(event.Body) == "a:2" {
							return trouble(ctx, r)
						}
						return r.handler(ctx, tx, event)
					})
				}()
				time.Sleep(150 * time.Second) // of the bubble's clock: three rounds
				r.wantOrders("a:1 b:1 b:2")
				if log := r.Log.String(); strings.Count(log, "entity waits for a version") != 1 || !strings.Contains(log, "entity=c missing=1") {
					t.Errorf("the log is\n%s", log)
				}
				if n := r.OldGaps(); n != 2 {
					t.Errorf("%d old gaps, must be one of a and one of c", n)
				}
				cancel()
				<-ended
			})
		})
	}
}

// If the database is unavailable, a round ends with the first entity that shows it.
func TestARoundOfWatchEndsWhereTheDatabaseIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newOrdered(t, versions.OrderedOptions{GapAge: time.Minute})
		for _, entity := range []string{"a", "b", "c"} {
			r.fail[entity+":2"] = receivertest.ErrHandler
			r.take(entity+":2", entity+":1")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.Watch(ctx, r.DB, func(context.Context, *sql.Tx, amqp.Delivery) error {
				r.Faults.OnConnect = receivertest.FailingTimes(receivertest.Failures)
				r.Faults.KillAll()
				return receivertest.ErrNetwork
			})
		}()
		time.Sleep(time.Second) // of the bubble's clock: one round
		cancel()
		<-ended
		if log := r.Log.String(); strings.Count(log, "watch failed") != 1 {
			t.Errorf("other than one entity was tried; the log is\n%s", log)
		}
	})
}
