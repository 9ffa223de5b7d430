package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
)

// runUntilIdle runs Work or Resume until nothing is ready or started.
func runUntilIdle(t *testing.T, db *database, guard *idempotency.Guard, run func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	eventually(t, "nothing is ready or started", func() (bool, error) {
		counts, err := guard.CountPending(ctx, db.DB)
		return counts[idempotency.Ready]+counts[idempotency.Started] == 0, err
	})
	cancel()
	must(t, <-ended)
}

// An effect that may have happened is never repeated; the doubt is there for who can
// find out, and then the e-mail has been sent once.
func TestAnEffectIsNeverRepeatedWhereverItsReceiverIsKilled(t *testing.T) {
	for task, least := range map[string]int{"AtMostOnce": 8, "AtMostOnce, not done": 13, "AtMostOnce, in doubt": 6} {
		t.Run(task, func(t *testing.T) {
			t.Parallel()
			walkThrough(t, task, least, func(t *testing.T, db *database, q *queue, o outbox, id string, guard *idempotency.Guard) {
				ctx := t.Context()
				before := o.sent(t, id)
				if before > 1 {
					t.Errorf("%s was sent %d times", id, before)
				}
				effect := func(_ context.Context, d amqp.Delivery) error { return o.send(d) }
				redeliver(t, q, func(d amqp.Delivery) error { return guard.AtMostOnce(ctx, db.DB, d, effect) })
				runUntilIdle(t, db, guard, func(ctx context.Context) error { return guard.Resume(ctx, db.DB, effect) })
				if now := o.sent(t, id); now > 1 {
					t.Errorf("%s was sent %d times", id, now)
				}
				found, err := guard.Pending(ctx, db.DB, idempotency.Doubtful, "", 10)
				must(t, err)
				for _, p := range found {
					if !p.Stored || p.Message.MessageId != id || string(p.Message.Body) != id {
						t.Errorf("the doubtful message is %+v", p)
					}
					if o.sent(t, id) > 0 {
						must(t, guard.MarkDone(ctx, db.DB, p.Key))
					} else {
						must(t, guard.Retry(ctx, db.DB, p.Key))
						runUntilIdle(t, db, guard, func(ctx context.Context) error { return guard.Resume(ctx, db.DB, effect) })
					}
				}
				if now := o.sent(t, id); now != 1 {
					t.Errorf("in the end %s was sent %d times", id, now)
				}
				redeliver(t, q, func(amqp.Delivery) error { return errors.New("the queue is not empty") })
			})
		})
	}
}

func TestAMessageIsStoredAndHandledOnceWhereverItsReceiverIsKilled(t *testing.T) {
	for task, least := range map[string]int{"Accept": 5, "Work": 14} {
		t.Run(task, func(t *testing.T) {
			t.Parallel()
			orders := 0
			walkThrough(t, task, least, func(t *testing.T, db *database, q *queue, _ outbox, id string, guard *idempotency.Guard) {
				redeliver(t, q, func(d amqp.Delivery) error { return guard.Accept(t.Context(), db.DB, d) })
				runUntilIdle(t, db, guard, func(ctx context.Context) error {
					return guard.Work(ctx, db.DB, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
						return db.placeOrder(ctx, tx, d.MessageId)
					})
				})
				var n int
				must(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM orders WHERE id = '`+id+`'`).Scan(&n))
				if orders++; n != 1 {
					t.Errorf("%s was handled %d times", id, n)
				}
			})
			if orders == 0 {
				t.Error("nothing was tried")
			}
		})
	}
}

func TestAPurgeThatIsKilledHasForgottenNothingThatIsNotOld(t *testing.T) {
	const old, young = 700, 3
	databasesTakeTurns(t, func(t *testing.T, db *database, first, stride int) {
		q := newQueue(t, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000})
		long := map[string]string{"pgx": `now() - interval '20 days'`, "sqlite": `unixepoch() - 20 * 86400`}[db.driver]
		count := func(keys string) (n int) {
			must(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM bridge_inbox WHERE key LIKE '`+keys+`'`).Scan(&n))
			return n
		}
		for n := range young {
			_, err := db.ExecContext(t.Context(), `INSERT INTO bridge_inbox (consumer, key) VALUES ('shop', 'young `+strconv.Itoa(n)+`')`)
			must(t, err)
		}
		for step := first; ; step += stride {
			tx, err := db.BeginTx(t.Context(), nil)
			must(t, err)
			for n := range old {
				_, err := tx.ExecContext(t.Context(), `INSERT INTO bridge_inbox (consumer, key, claimed_at)
VALUES ('shop', 'old `+strconv.Itoa(n)+`', `+long+`) ON CONFLICT DO NOTHING`)
				must(t, err)
			}
			must(t, tx.Commit())
			q.publish(fmt.Sprint("m", step))
			killed := q.kill(walker("Purge", step, db, ""))
			left := count("old %")
			if killed && left != old && left != old-500 && left != 0 {
				t.Errorf("after a kill at step %d %d old keys are left: a step of the purge was halved", step, left)
			}
			guard := newGuard(t, db.inbox, walkers)
			if n, err := guard.Purge(t.Context(), db.DB); err != nil || n != int64(left) {
				t.Errorf("the next purge forgot %d of %d, %v", n, left, err)
			}
			if n := count("young %"); n != young {
				t.Fatalf("after a kill at step %d %d young keys are left", step, n)
			}
			if !killed {
				if step < 7 {
					t.Errorf("there were only %d steps", step-1)
				}
				return
			}
		}
	})
}
