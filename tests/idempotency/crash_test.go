package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency/pending"
	"github.com/twoqueue/twoqueue/idempotency/versions"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// runUntilIdle runs Work or Resume until no message is ready or started. The times of killed
// receivers are over.
func runUntilIdle(t *testing.T, db *database, effects *pending.Effects, run func(ctx context.Context) error) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `UPDATE bridge_inbox_pending SET due_ms = 0`)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	eventually(t, "nothing is ready or started", func() (bool, error) {
		counts, err := effects.Count(ctx, db.DB)
		return counts[pending.Ready]+counts[pending.Started] == 0, err
	})
	cancel()
	must(t, servertest.Next(t, "Work or Resume ends with its context", ended))
}

// An effect that may have happened is never repeated. The message stays doubtful for an operator,
// and after the decision the e-mail has been sent once.
func TestAnEffectIsNeverRepeatedWhereverItsReceiverIsKilled(t *testing.T) {
	t.Parallel()
	for task, least := range map[string]int{"AtMostOnce, not done": 13, "AtMostOnce, in doubt": 6} {
		t.Run(task, func(t *testing.T) {
			t.Parallel()
			walkThrough(t, task, least, func(t *testing.T, db *database, q *queue, o outbox, id string, effects *pending.Effects, _ *pending.Worker) {
				ctx := t.Context()
				before := o.sent(t, id)
				if before > 1 {
					t.Errorf("%s was sent %d times", id, before)
				}
				effect := func(_ context.Context, d amqp.Delivery) error { return o.send(d) }
				q.redeliver(func(d amqp.Delivery) error { return effects.AtMostOnce(ctx, db.DB, d, effect) })
				runUntilIdle(t, db, effects, func(ctx context.Context) error { return effects.Resume(ctx, db.DB, effect) })
				if now := o.sent(t, id); now > 1 {
					t.Errorf("%s was sent %d times", id, now)
				}
				found, err := effects.List(ctx, db.DB, pending.Doubtful, "", 10)
				must(t, err)
				for _, p := range found {
					if !p.Stored || p.Delivery.MessageId != id || string(p.Delivery.Body) != id {
						t.Errorf("the doubtful message is %+v", p)
					}
					if o.sent(t, id) > 0 {
						must(t, effects.MarkDone(ctx, db.DB, p.Key))
					} else {
						must(t, effects.Retry(ctx, db.DB, p.Key))
						runUntilIdle(t, db, effects, func(ctx context.Context) error { return effects.Resume(ctx, db.DB, effect) })
					}
				}
				if now := o.sent(t, id); now != 1 {
					t.Errorf("in the end %s was sent %d times", id, now)
				}
				q.redeliver(func(amqp.Delivery) error { return errors.New("the queue is not empty") })
			})
		})
	}
}

func TestAMessageIsStoredAndHandledOnceWhereverItsReceiverIsKilled(t *testing.T) {
	t.Parallel()
	walkThrough(t, "Accept and Work", 19, func(t *testing.T, db *database, q *queue, _ outbox, id string, effects *pending.Effects, worker *pending.Worker) {
		q.redeliver(func(d amqp.Delivery) error { return worker.Accept(t.Context(), db.DB, d) })
		runUntilIdle(t, db, effects, func(ctx context.Context) error {
			return worker.Work(ctx, db.DB, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
				return db.placeOrder(ctx, tx, d.MessageId)
			})
		})
		var n int
		must(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM orders WHERE id = '`+id+`'`).Scan(&n))
		if n != 1 {
			t.Errorf("%s was handled %d times", id, n)
		}
	})
}

// crashes lists, by strategy, the delivered messages and the versions that must take effect, in
// this order.
var crashes = map[string]struct {
	messages, effects []string
	steps             int // at least
}{
	"Handle": {[]string{"e:1", "e:1"}, []string{"1"}, 8},

	// The first two messages are in one batch or in two.
	"HandleBatch": {[]string{"e:1", "e:2", "e:1"}, []string{"1", "2"}, 10},
	"Latest":      {[]string{"e:1", "e:3", "e:2"}, []string{"1", "3"}, 15},
	"Ordered":     {[]string{"e:3", "e:2", "e:1"}, []string{"1", "2", "3"}, 22},
	"HighWater":   {[]string{"e:001", "e:010", "e:010"}, []string{"001", "010"}, 15},
}

// A receiver is killed after its first step, another one after its second, until one finishes
// alive. After each of them another receiver handles the remaining messages. The databases take
// turns with the steps.
func TestAReceiverKilledBetweenAnyTwoStepsLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	for strategy, c := range crashes {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			databasesTakeTurns(t, func(t *testing.T, db *database, first, stride int) {
				q := newQueue(t, limitless)
				for step := first; ; step += stride {
					q.publish(c.messages...)
					killed := q.kill(db, child{Task: strategy, Step: step, Messages: len(c.messages)})
					q.waitNoConsumers()
					r, err := db.receiver(strategy, db.inbox, versions.Options{DeadLetterExchange: true})
					must(t, err)
					q.redeliver(func(d amqp.Delivery) error { return r.handle(t.Context(), d, db.place) })
					if got := db.placed(t)["e"]; !slices.Equal(got, c.effects) {
						t.Errorf("after a kill at step %d versions %v took effect, must be %v", step, got, c.effects)
					}
					if r.left != nil {
						if left, err := r.left(t.Context()); err != nil || left {
							t.Errorf("after a kill at step %d something is still kept (%v)", step, err)
						}
					}
					for _, table := range []string{"orders", "bridge_inbox", "bridge_mark", "bridge_kept"} {
						_, err := db.ExecContext(t.Context(), `DELETE FROM `+table)
						must(t, err)
					}
					if !killed {
						if step < c.steps {
							t.Errorf("there were only %d steps", step-1)
						}
						break
					}
				}
			})
		})
	}
}
