package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
)

func (r *receiver) deliveries(ids ...string) (ds []amqp.Delivery) {
	for _, id := range ids {
		ds = append(ds, r.Delivery(id))
	}
	return ds
}

func idsOf(ds []amqp.Delivery) (ids []string) {
	for _, d := range ds {
		ids = append(ids, d.MessageId)
	}
	return ids
}

// placeOrders returns a handler that stores an order for each message. A message with an ID that
// begins with "poison" fails.
func placeOrders(ctx context.Context, tx *sql.Tx, ds []amqp.Delivery) error {
	for _, d := range ds {
		if err := receivertest.PlaceOrder(d.MessageId)(ctx, tx); err != nil {
			return err
		}
		if strings.HasPrefix(d.MessageId, "poison") {
			return receivertest.ErrHandler
		}
	}
	return nil
}

func TestABatchHandlesEachNewMessageOnceInOneTransaction(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	r.handle(receivertest.PlaceOrder("m1"))
	var calls [][]string
	receivertest.Must(t, r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m3", "m2", "m1", "m2", "m4"), func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
		calls = append(calls, idsOf(fresh))
		return placeOrders(ctx, tx, fresh)
	}))
	if len(calls) != 1 || !slices.Equal(calls[0], []string{"m3", "m2", "m4"}) {
		t.Errorf("the handler was given %q", calls)
	}
	r.WantRows(4, 4)
	r.WantSaid("ack 1", "ack 2", "ack 3", "ack 4", "ack 5", "ack 6")
	r.wantStats(idempotency.Stats{Handled: 4, Duplicates: 2})

	receivertest.Must(t, r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m2", "m4"), func(context.Context, *sql.Tx, []amqp.Delivery) error {
		t.Error("the handler ran for duplicates")
		return nil
	}))
	receivertest.Must(t, r.dedup.HandleBatch(t.Context(), r.DB, nil, placeOrders))
	r.wantStats(idempotency.Stats{Handled: 4, Duplicates: 4})
}

// The poison is tried as often as Options allow and dead-lettered, and each other message is
// handled before the poison's pauses have ended.
func TestABatchThatFailsIsTakenApartAndThePoisonAloneIsDeadLettered(t *testing.T) {
	for name, fail := range map[string]func(){"error": func() {}, "panic": func() { panic("poison") }} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var dead []string
				r := newReceiver(t, idempotency.Options{Attempts: 3, MinDelay: time.Minute, MaxDelay: time.Minute,
					DeadLetter: func(_ context.Context, d amqp.Delivery, _ error) error {
						dead = append(dead, d.MessageId)
						return nil
					}})
				var mu sync.Mutex
				running, alone := 0, make(map[string]int)
				begun := time.Now()
				receivertest.Must(t, r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m1", "poison", "m2", "m1", "m3"), func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
					mu.Lock()
					defer mu.Unlock()
					if running++; running > 1 {
						t.Error("two attempts run at once")
					}
					defer func() { running-- }()
					if len(fresh) == 1 {
						alone[fresh[0].MessageId]++
						if fresh[0].MessageId != "poison" && time.Since(begun) > 0 {
							t.Errorf("%s waited for the poison", fresh[0].MessageId)
						}
					}
					err := placeOrders(ctx, tx, fresh)
					if err != nil {
						fail()
					}
					return err
				}))
				if want := map[string]int{"m1": 1, "m2": 1, "m3": 1, "poison": 3}; fmt.Sprint(alone) != fmt.Sprint(want) {
					t.Errorf("handled alone: %v, must be %v", alone, want)
				}
				if !slices.Equal(dead, []string{"poison"}) {
					t.Errorf("dead-lettered: %q", dead)
				}
				r.WantRows(3, 3)
				r.wantStats(idempotency.Stats{Handled: 3, Duplicates: 1, DeadLettered: 1, FailedAttempts: 3})
			})
		})
	}
}

func TestABatchWhoseDatabaseFailsIsTriedAgainAsAWhole(t *testing.T) {
	for name, c := range map[string]struct {
		fail func(r *receiver)
		want idempotency.Stats
	}{
		"no connection": {func(r *receiver) {
			r.Faults.KillAll()
			r.Faults.OnConnect = receivertest.FailingTimes(receivertest.Failures)
		}, idempotency.Stats{Handled: 3}},
		"no claim, twice": {func(r *receiver) { r.Inbox.Failures.Store(2) }, idempotency.Stats{Handled: 3}},
		"no claim, and then no connection": {func(r *receiver) {
			failures := receivertest.FailingTimes(receivertest.Failures)
			r.Inbox.OnClaim = func(context.Context) error {
				if failures() == nil {
					r.Inbox.OnClaim = nil
				}
				r.Faults.KillAll()
				return receivertest.ErrNetwork
			}
		}, idempotency.Stats{Handled: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Attempts: 1, DeadLetterExchange: true})
				c.fail(r)
				calls := 0
				receivertest.Must(t, r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m1", "m2", "m3"), func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
					calls++
					return placeOrders(ctx, tx, fresh)
				}))
				if calls != 1 {
					t.Errorf("the handler ran %d times", calls)
				}
				r.WantRows(3, 3)
				r.wantStats(c.want)
			})
		})
	}
}

// A connection that dies in the handler or the commit does not count against any message.
func TestABatchWhoseConnectionDiesIsHandledOnceAllTheSame(t *testing.T) {
	for name, c := range map[string]struct {
		commit func(commit func() error) error
		dies   int
		want   idempotency.Stats
	}{
		"dies in the handler":         {nil, 3, idempotency.Stats{Handled: 3}},
		"commit, done, no answer":     {func(commit func() error) error { return errors.Join(commit(), receivertest.ErrNetwork) }, 0, idempotency.Stats{Duplicates: 3}},
		"commit, not done, no answer": {func(func() error) error { return receivertest.ErrNetwork }, 0, idempotency.Stats{Handled: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Attempts: 1, DeadLetterExchange: true})
				if c.commit != nil {
					r.Faults.OnCommit = func(commit func() error) error {
						r.Faults.OnCommit = nil // a new connection works again
						return c.commit(commit)
					}
				}
				dies := receivertest.FailingTimes(c.dies)
				receivertest.Must(t, r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m1", "m2", "m3"), func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
					if dies() != nil {
						r.Faults.KillAll()
					}
					return placeOrders(ctx, tx, fresh)
				}))
				r.WantRows(3, 3)
				r.wantStats(c.want)
			})
		})
	}
}

func TestAStrangeMessageInABatchIsDeadLetteredAlone(t *testing.T) {
	r := newReceiver(t, idempotency.Options{DeadLetterExchange: true})
	receivertest.Must(t, r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m1", "", "m2", "a\x00b", "01890000-0000-7000-8000-000000000001"), placeOrders))
	r.WantRows(2, 2)
	r.wantStats(idempotency.Stats{Handled: 2, DeadLettered: 3})
}

func TestAStopLeavesTheMessagesOfABatchUnacked(t *testing.T) {
	for name, before := range map[string]bool{"before": true, "in the handler": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{DeadLetterExchange: true})
				ctx, stop := context.WithCancel(t.Context())
				if before {
					stop()
				}
				err := r.dedup.HandleBatch(ctx, r.DB, r.deliveries("m1", "m2"), func(ctx context.Context, tx *sql.Tx, _ []amqp.Delivery) error {
					stop()
					<-ctx.Done()
					return ctx.Err()
				})
				if !errors.Is(err, idempotency.ErrLeftUnacked) || !errors.Is(err, context.Canceled) {
					t.Errorf("error %v", err)
				}
				r.WantSaid()
				r.WantRows(0, 0)
				r.wantStats(idempotency.Stats{LeftUnacked: 2})
			})
		})
	}
}

func TestABatchThatOutlastsHoldIsHandedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{DeadLetterExchange: true, Hold: time.Hour})
		r.Inbox.OnClaim = func(context.Context) error {
			r.Faults.KillAll()
			return receivertest.ErrNetwork
		}
		begun := time.Now()
		err := r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m1", "m2"), placeOrders)
		if held := time.Since(begun); held != time.Hour {
			t.Errorf("held for %v, must be an hour", held)
		}
		if !errors.Is(err, idempotency.ErrHandedBack) {
			t.Errorf("error %v", err)
		}
		r.WantSaid("requeue 1", "requeue 2")
		r.wantStats(idempotency.Stats{HandedBack: 2})
	})
}

// The whole of Hold counts from the call, even for messages that are handled alone.
func TestAMessageOfABatchIsHeldNoLongerThanHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{Attempts: 1000, MinDelay: time.Minute, MaxDelay: time.Minute, Hold: time.Hour, DeadLetterExchange: true})
		begun := time.Now()
		err := r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m1", "poison", "m2"), placeOrders)
		if held := time.Since(begun); held != time.Hour {
			t.Errorf("held for %v, must be an hour", held)
		}
		if !errors.Is(err, idempotency.ErrHandedBack) {
			t.Errorf("error %v", err)
		}
		r.WantRows(2, 2)
	})
}

func TestABatchWhoseHandlerEndsItsGoroutineIsHandedBack(t *testing.T) {
	r := newReceiver(t, idempotency.Options{DeadLetterExchange: true})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m1", "m2"), func(context.Context, *sql.Tx, []amqp.Delivery) error {
			receivertest.Goexit()
			return nil
		})
	}()
	<-ended
	r.WantSaid("requeue 1", "requeue 2")
	r.WantRows(0, 0)
}

// The claim of one message waits for a transaction that does not end, in the batch and alone.
func TestAMessageWhoseAttemptHangsDelaysTheOthersOfItsBatchAndStopsNone(t *testing.T) {
	for _, hold := range []time.Duration{time.Hour, 20 * time.Second, 4 * time.Second} {
		t.Run(hold.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{DeadLetterExchange: true, Hold: hold})
				r.Inbox.Held = "m1"
				err := r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m1", "m2", "m3"), placeOrders)
				if !errors.Is(err, idempotency.ErrHandedBack) {
					t.Errorf("error %v", err)
				}
				r.WantRows(2, 2)
				r.wantStats(idempotency.Stats{Handled: 2, HandedBack: 1})
			})
		})
	}
}

// With one worker the order of the queue is kept, even if a message fails at first.
func TestABatchOfOneWorkerThatIsTakenApartKeepsItsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{DeadLetterExchange: true})
		var order []string
		fails := receivertest.FailingTimes(2)
		ctx := idempotency.InSessionOfOneWorker(t.Context())
		receivertest.Must(t, r.dedup.HandleBatch(ctx, r.DB, r.deliveries("m1", "m2", "m3", "m4", "m5"), func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
			if len(fresh) > 1 {
				return receivertest.ErrHandler
			}
			if fresh[0].MessageId == "m2" && fails() != nil {
				return receivertest.ErrHandler
			}
			order = append(order, fresh[0].MessageId)
			return placeOrders(ctx, tx, fresh)
		}))
		if want := []string{"m1", "m2", "m3", "m4", "m5"}; !slices.Equal(order, want) {
			t.Errorf("handled in the order %q, must be %q", order, want)
		}
	})
}

// While one message's handler hangs, the other messages of its batch are handled.
func TestAnAttemptAloneThatHangsKeepsItsTurnNoLongerThanTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{DeadLetterExchange: true, Hold: time.Hour})
		r.Inbox.Held = "poison"
		begun := time.Now()
		ended := make(map[string]time.Duration)
		err := r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("poison", "m2", "m3"), func(_ context.Context, _ *sql.Tx, fresh []amqp.Delivery) error {
			ended[fresh[0].MessageId] = time.Since(begun)
			return nil
		})
		if !errors.Is(err, idempotency.ErrHandedBack) {
			t.Errorf("error %v", err)
		}
		for _, id := range []string{"m2", "m3"} {
			if at, ok := ended[id]; !ok || at > 15*time.Minute+10*time.Second {
				t.Errorf("%s is handled (%v) after %v", id, ok, at)
			}
		}
	})
}

// A key that the database cannot store stops only its own message.
func TestAClaimThatTheDatabaseRefusesStopsNoOtherMessageOfItsBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{DeadLetterExchange: true, Hold: time.Hour})
		r.Inbox.Refused = "m2"
		begun, last := time.Now(), time.Time{}
		err := r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m1", "m2", "m3"), func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
			last = time.Now()
			return placeOrders(ctx, tx, fresh)
		})
		if !errors.Is(err, idempotency.ErrHandedBack) || !errors.Is(err, receivertest.ErrRefused) {
			t.Errorf("the refused message: %v", err)
		}
		if took := last.Sub(begun); last.IsZero() || took > time.Minute {
			t.Errorf("the others were handled after %v", took)
		}
		r.WantRows(2, 2)
		r.wantStats(idempotency.Stats{Handled: 2, HandedBack: 1})
	})
}
