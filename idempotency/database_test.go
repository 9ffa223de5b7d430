package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
)

func TestAFailingDatabaseDoesNotCountAgainstTheMessage(t *testing.T) {
	for name, c := range map[string]struct {
		fail func(r *receiver)
		dies int // how often the handler's connection dies
		want idempotency.Stats
	}{
		"no connection": {func(r *receiver) {
			r.Faults.KillAll()
			r.Faults.OnConnect = receivertest.FailingTimes(receivertest.Failures)
		}, 0, idempotency.Stats{Handled: 1}},
		"no claim":            {func(r *receiver) { r.Inbox.Failures.Store(receivertest.Failures) }, 0, idempotency.Stats{Handled: 1}},
		"dies in the handler": {func(*receiver) {}, receivertest.Failures, idempotency.Stats{Handled: 1}},
		"commit, not done, no answer": {func(r *receiver) {
			lost := receivertest.FailingTimes(receivertest.Failures)
			r.Faults.OnCommit = func(commit func() error) error {
				if err := lost(); err != nil {
					return err
				}
				return commit()
			}
		}, 0, idempotency.Stats{Handled: 1}},
		"commit, done, no answer": {func(r *receiver) {
			r.Faults.OnCommit = func(commit func() error) error { return errors.Join(commit(), receivertest.ErrNetwork) }
		}, 0, idempotency.Stats{Duplicates: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Attempts: 1, DeadLetterExchange: true})
				c.fail(r)
				dies := receivertest.FailingTimes(c.dies)
				r.handle(func(ctx context.Context, tx *sql.Tx) error {
					if dies() != nil {
						r.Faults.KillAll()
					}
					return receivertest.PlaceOrder("m1")(ctx, tx)
				})
				r.WantSaid("ack 1")
				r.WantRows(1, 1)
				r.wantStats(c.want)
			})
		})
	}
}

func TestADatabaseThatStaysAwayHandsTheMessageBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{DeadLetterExchange: true, Hold: time.Hour})
		r.Inbox.Failures.Store(1 << 30)
		start := time.Now()
		err := r.dedup.Handle(t.Context(), r.DB, r.Delivery("m1"), receivertest.MustNotRun(t))
		if held := time.Since(start); held != time.Hour {
			t.Errorf("held for %v, want an hour", held)
		}
		wantHandedBack(t, r, err, receivertest.ErrNetwork)
		r.wantStats(idempotency.Stats{HandedBack: 1})
		// An hour of pauses of 10 s, each varied by up to a half.
		if tries := 1<<30 - int(r.Inbox.Failures.Load()); tries < 240 || tries > 480 {
			t.Errorf("tried %d times in an hour", tries)
		}
	})
}

// A message whose handler loses the connection each time is given up if other messages are handled
// meanwhile, or if the database answers on another connection each time, for an hour. Otherwise the
// database may be away. It is never given up for a broker that does not answer.
func TestALostConnectionCountsOnlyWhileTheDatabaseWorks(t *testing.T) {
	for name, c := range map[string]struct {
		others  bool
		pause   time.Duration // between two deliveries
		away    time.Duration // how long the database is away after each loss
		between bool          // between two losses no transaction begins
		fails   int           // the attempt in which the handler only fails, from 1 on
		err     error         // of the handler
		want    idempotency.Stats
	}{
		"others are handled":                          {others: true, want: idempotency.Stats{DeadLettered: 1, HandedBack: 3, FailedAttempts: 3, Handled: 3}},
		"others are handled, the broker is away":      {others: true, err: bridge.ErrBlocked, want: idempotency.Stats{HandedBack: 40, Handled: 40}},
		"no others, the database answers for an hour": {pause: 3 * time.Minute, want: idempotency.Stats{DeadLettered: 1, HandedBack: 22, FailedAttempts: 3}},
		"no others, one attempt fails otherwise":      {pause: 3 * time.Minute, fails: 20, want: idempotency.Stats{DeadLettered: 1, HandedBack: 41, FailedAttempts: 3}},
		"no others, the database answers for minutes": {pause: time.Minute, want: idempotency.Stats{HandedBack: 40}},
		"no others, the database is away":             {pause: 3 * time.Minute, away: time.Second / 2, want: idempotency.Stats{HandedBack: 40}},
		"no others, the database is away in between":  {pause: 3 * time.Minute, between: true, want: idempotency.Stats{HandedBack: 80}},
		"no others, the broker is away":               {pause: 3 * time.Minute, err: bridge.ErrBlocked, want: idempotency.Stats{HandedBack: 40}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// One attempt per delivery.
				r := newReceiver(t, idempotency.Options{DeadLetterExchange: true, Attempts: 3, Hold: time.Second, MinDelay: time.Minute, MaxDelay: time.Minute})
				back := time.Now()
				r.Faults.OnConnect = func() error {
					if time.Now().Before(back) {
						return receivertest.ErrNetwork
					}
					return nil
				}
				for n := 0; r.dedup.Stats().HandedBack < c.want.HandedBack || c.want.DeadLettered > 0; n++ {
					err := r.dedup.Handle(t.Context(), r.DB, r.Delivery("m1"), func(ctx context.Context, tx *sql.Tx) error {
						if n+1 == c.fails {
							return receivertest.ErrHandler
						}
						r.Faults.KillAll()
						back = time.Now().Add(c.away)
						if c.err != nil {
							return c.err
						}
						return receivertest.PlaceOrder("m1")(ctx, tx)
					})
					if err == nil {
						break // given up
					}
					if c.others {
						receivertest.Must(t, r.dedup.Handle(t.Context(), r.DB, r.Delivery(fmt.Sprint("other ", n)), receivertest.PlaceOrder("o")))
					}
					if c.between {
						r.Faults.KillAll()
						back = time.Now().Add(c.pause)
						if err := r.dedup.Handle(t.Context(), r.DB, r.Delivery("m1"), receivertest.MustNotRun(t)); !errors.Is(err, idempotency.ErrHandedBack) {
							t.Fatal(err)
						}
					}
					time.Sleep(c.pause)
				}
				r.wantStats(c.want)
			})
		})
	}
}

// queues keeps the messages that are published, by queue.
type queues map[string][]amqp.Publishing

func (q queues) Publish(_ context.Context, messages []bridge.Outgoing) error {
	for _, m := range messages {
		q[m.Target.RoutingKey] = append(q[m.Target.RoutingKey], m.Publishing)
	}
	return nil
}

// A lost connection that counts takes the message to a retry queue, and the next one counts at once
// when the message comes back.
func TestLostConnectionsInARowCountAcrossRetryQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const attempts = 4
		published := make(queues)
		retry := []engine.RetryQueue{{Name: "retry", Delay: time.Minute}}
		r := newReceiver(t, idempotency.Options{Attempts: attempts, Hold: time.Second, MinDelay: time.Minute, MaxDelay: time.Minute, // one attempt per delivery
			Queues: engine.NewQueues(published, "orders", retry, slog.New(slog.DiscardHandler))})
		begun := time.Now()
		for len(published["orders.dead"]) == 0 && time.Since(begun) < 12*time.Hour {
			d := r.Delivery("m1")
			if copies := published["retry"]; len(copies) > 0 {
				d.Headers = copies[len(copies)-1].Headers
			}
			before := len(published["retry"])
			err := r.dedup.Handle(t.Context(), r.DB, d, func(ctx context.Context, tx *sql.Tx) error {
				r.Faults.KillAll()
				return receivertest.PlaceOrder("m1")(ctx, tx)
			})
			if err != nil && !errors.Is(err, idempotency.ErrHandedBack) {
				t.Fatal(err)
			}
			pause := 3 * time.Minute
			if len(published["retry"]) > before {
				pause = retry[0].Delay
			}
			time.Sleep(pause)
		}
		if took := time.Since(begun); took < time.Hour || took > time.Hour+15*time.Minute {
			t.Errorf("it was dead after %v, must be after an hour and three retries", took)
		}
		if stats := r.dedup.Stats(); stats.DeadLettered != 1 || stats.RetriedLater != attempts-1 || stats.FailedAttempts != attempts {
			t.Errorf("stats are %+v", stats)
		}
	})
}

// A message whose COMMIT gets no answer may be handled, so it is not given up: the next attempt finds
// out.
func TestALostCommitIsNotTheLastAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{DeadLetterExchange: true, Attempts: 1})
		runs, other := 0, make(chan struct{})
		r.handle(func(ctx context.Context, tx *sql.Tx) error {
			switch runs++; runs {
			case 1:
				r.Faults.KillAll()
				go func() { // while the first message pauses
					defer close(other)
					receivertest.Must(t, r.dedup.Handle(t.Context(), r.DB, r.Delivery("other"), receivertest.PlaceOrder("other")))
				}()
			case 2:
				<-other
				r.Faults.OnCommit = func(commit func() error) error { return errors.Join(commit(), receivertest.ErrNetwork) }
			}
			return receivertest.PlaceOrder("m1")(ctx, tx)
		})
		r.wantStats(idempotency.Stats{Handled: 1, Duplicates: 1})
	})
}
