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

// A failure of the database counts against no message. The batch is tried again as a whole, or, if
// the connection died behind the handler, one by one.
func TestABatchWhoseDatabaseFailsIsHandledOnce(t *testing.T) {
	commit := func(fail func(commit func() error) error) func(r *receiver) {
		return func(r *receiver) {
			r.Faults.OnCommit = func(commit func() error) error {
				r.Faults.OnCommit = nil // a new connection works again
				return fail(commit)
			}
		}
	}
	for name, c := range map[string]struct {
		fail func(r *receiver)
		dies int // how often the handler's connection dies
		runs int // of the handler
		want idempotency.Stats
	}{
		"no connection": {func(r *receiver) {
			r.Faults.KillAll()
			r.Faults.OnConnect = receivertest.FailingTimes(receivertest.Failures)
		}, 0, 1, idempotency.Stats{Handled: 3}},
		"no claim, twice": {func(r *receiver) { r.Inbox.Failures.Store(2) }, 0, 1, idempotency.Stats{Handled: 3}},
		"no claim, and then no connection": {func(r *receiver) {
			failures := receivertest.FailingTimes(receivertest.Failures)
			r.Inbox.OnClaim = func(context.Context) error {
				if failures() == nil {
					r.Inbox.OnClaim = nil
				}
				r.Faults.KillAll()
				return receivertest.ErrNetwork
			}
		}, 0, 1, idempotency.Stats{Handled: 3}},
		"dies in the handler": {func(*receiver) {}, 3, 1 + 3 + 2, idempotency.Stats{Handled: 3}},
		"commit, done, no answer": {commit(func(commit func() error) error { return errors.Join(commit(), receivertest.ErrNetwork) }),
			0, 1, idempotency.Stats{Duplicates: 3}},
		"commit, not done, no answer": {commit(func(func() error) error { return receivertest.ErrNetwork }), 0, 1 + 3, idempotency.Stats{Handled: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Attempts: 1, DeadLetterExchange: true})
				c.fail(r)
				dies, runs := receivertest.FailingTimes(c.dies), 0
				receivertest.Must(t, r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m1", "m2", "m3"), func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
					runs++
					if dies() != nil {
						r.Faults.KillAll()
					}
					return placeOrders(ctx, tx, fresh)
				}))
				if runs != c.runs {
					t.Errorf("the handler ran %d times, must be %d", runs, c.runs)
				}
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

// The whole of Hold counts from the call, even for messages that are handled alone.
func TestABatchIsHeldNoLongerThanHold(t *testing.T) {
	for name, c := range map[string]struct {
		away bool // the database
		want idempotency.Stats
	}{
		"the database is away":    {true, idempotency.Stats{HandedBack: 3}},
		"one message fails alone": {false, idempotency.Stats{HandedBack: 1, Handled: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Attempts: 1000, MinDelay: time.Minute, MaxDelay: time.Minute, Hold: time.Hour, DeadLetterExchange: true})
				if c.away {
					r.Inbox.OnClaim = func(context.Context) error {
						r.Faults.KillAll()
						return receivertest.ErrNetwork
					}
				}
				begun := time.Now()
				err := r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m1", "poison", "m2"), func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
					if len(fresh) > 1 {
						time.Sleep(time.Second) // of the bubble's clock
					}
					return placeOrders(ctx, tx, fresh)
				})
				if held := time.Since(begun); held != time.Hour {
					t.Errorf("held for %v, must be an hour", held)
				}
				if !errors.Is(err, idempotency.ErrHandedBack) {
					t.Errorf("error %v", err)
				}
				r.WantRows(int(c.want.Handled), int(c.want.Handled))
				stats := r.dedup.Stats()
				stats.FailedAttempts = 0
				receivertest.WantStats(t, stats, c.want)
			})
		})
	}
}

// The claim of one message waits for a transaction that does not end, in the batch and alone. Alone
// it keeps its turn for ten seconds at most.
func TestAMessageWhoseAttemptHangsDelaysTheOthersOfItsBatchAndStopsNone(t *testing.T) {
	for _, hold := range []time.Duration{time.Hour, 20 * time.Second, 4 * time.Second} {
		t.Run(hold.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{DeadLetterExchange: true, Hold: hold})
				r.Inbox.Held = "m1"
				begun, last := time.Now(), time.Duration(0)
				err := r.dedup.HandleBatch(t.Context(), r.DB, r.deliveries("m1", "m2", "m3"), func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
					last = time.Since(begun)
					return placeOrders(ctx, tx, fresh)
				})
				if !errors.Is(err, idempotency.ErrHandedBack) {
					t.Errorf("error %v", err)
				}
				if last > 15*time.Minute+10*time.Second {
					t.Errorf("the others are handled after %v", last)
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
