package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/idempotency"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errHandler = errors.New("no such customer")

func failing(context.Context, *sql.Tx) error { return errHandler }

func TestTheAckComesAfterTheCommit(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	r.channel.onAck = func() { r.wantRows(1, 1) }
	if err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), placeOrder("m1")); err != nil {
		t.Fatal(err)
	}
	r.wantSaid("ack 1")
	r.wantStats(idempotency.Stats{Handled: 1})
}

func TestADuplicateIsAckedAndCountedButNotHandled(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	if err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), placeOrder("m1")); err != nil {
		t.Fatal(err)
	}
	if err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), mustNotRun(t)); err != nil {
		t.Fatal(err)
	}
	r.wantSaid("ack 1", "ack 2")
	r.wantRows(1, 1)
	r.wantStats(idempotency.Stats{Handled: 1, Duplicates: 1})
}

func TestEachConsumerHandlesAMessageOnce(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	billing := r.newGuard("billing", idempotency.Options{})
	for _, guard := range []*idempotency.Guard{r.guard, billing, r.guard, billing} {
		if err := guard.Handle(t.Context(), r.db, r.delivery("m1"), placeOrder("m1")); err != nil {
			t.Fatal(err)
		}
	}
	r.wantRows(2, 2)
}

func TestKeysThatDifferInCaseOrTrailingSpaceAreDifferentMessages(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	for _, id := range []string{"m1", "M1", "m1 ", " m1"} {
		if err := r.guard.Handle(t.Context(), r.db, r.delivery(id), placeOrder(id)); err != nil {
			t.Fatal(err)
		}
	}
	r.wantRows(4, 4)
}

func TestManyCopiesAtOnceAreHandledOnceEach(t *testing.T) {
	const messages, copies = 20, 5
	r := newReceiver(t, idempotency.Options{})
	var consumers sync.WaitGroup
	for c := range messages * copies {
		id := fmt.Sprint("m", c%messages)
		consumers.Go(func() {
			if err := r.guard.Handle(t.Context(), r.db, r.delivery(id), placeOrder(id)); err != nil {
				t.Error(err)
			}
		})
	}
	consumers.Wait()
	r.wantRows(messages, messages)
	r.wantStats(idempotency.Stats{Handled: messages, Duplicates: messages * (copies - 1)})
}

func TestAFailedAttemptLeavesNothingAndIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{})
		runs := 0
		err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), func(ctx context.Context, tx *sql.Tx) error {
			if err := placeOrder("m1")(ctx, tx); err != nil {
				t.Error(err)
			}
			if runs++; runs < 3 {
				return errHandler
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		r.wantSaid("ack 1")
		r.wantRows(1, 1)
		r.wantStats(idempotency.Stats{Handled: 1, FailedAttempts: 2})
	})
}

func TestAttemptsAreBoundedThenTheMessageIsDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{Attempts: 3, DeadLetterExchange: true})
		runs := 0
		start := time.Now()
		err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), func(context.Context, *sql.Tx) error {
			runs++
			return errHandler
		})
		if err != nil {
			t.Fatal(err)
		}
		if runs != 3 {
			t.Errorf("the handler ran %d times, want 3", runs)
		}
		if took := time.Since(start); took < 150*time.Millisecond || took > 450*time.Millisecond {
			t.Errorf("two pauses of 100 and 200 ms, each varied by a half, took %v", took)
		}
		r.wantSaid("reject 1")
		r.wantRows(0, 0)
		r.wantStats(idempotency.Stats{DeadLettered: 1, FailedAttempts: 3})
		if !strings.Contains(r.log.String(), errHandler.Error()) {
			t.Errorf("the log does not tell the reason:\n%s", r.log)
		}
	})
}

func TestADeadLetterFunctionGetsTheReasonAndTheAckComesAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r *receiver
		stored := 0
		r = newReceiver(t, idempotency.Options{DeadLetter: func(_ context.Context, d amqp.Delivery, reason error) error {
			if d.MessageId != "m1" || !errors.Is(reason, errHandler) {
				t.Errorf("got message %q with reason %v", d.MessageId, reason)
			}
			r.wantSaid()
			stored++
			return nil
		}})
		if err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), failing); err != nil {
			t.Fatal(err)
		}
		if stored != 1 {
			t.Errorf("stored %d times", stored)
		}
		r.wantSaid("ack 1")
		r.wantStats(idempotency.Stats{DeadLettered: 1, FailedAttempts: 5})
	})
}

func TestAMessageThatCannotBeDeadLetteredIsHandedBackAfterAPause(t *testing.T) {
	errStore := errors.New("disk full")
	for name, deadLetter := range map[string]func(context.Context, amqp.Delivery, error) error{
		"none configured": nil,
		"it fails":        func(context.Context, amqp.Delivery, error) error { return errStore },
		"it panics":       func(context.Context, amqp.Delivery, error) error { panic(errStore) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Attempts: 1, MaxDelay: time.Minute, DeadLetter: deadLetter})
				start := time.Now()
				err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), failing)
				if !errors.Is(err, idempotency.ErrHandedBack) || !errors.Is(err, errHandler) {
					t.Errorf("got %v", err)
				}
				if time.Since(start) < time.Minute {
					t.Errorf("handed back after %v", time.Since(start))
				}
				r.wantSaid("requeue 1")
				r.wantStats(idempotency.Stats{HandedBack: 1, FailedAttempts: 1})
			})
		})
	}
}

func TestAPermanentErrorIsNotTriedAgain(t *testing.T) {
	r := newReceiver(t, idempotency.Options{DeadLetterExchange: true})
	err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), func(context.Context, *sql.Tx) error {
		return fmt.Errorf("read order: %w", backoff.Permanent(errHandler))
	})
	if err != nil {
		t.Fatal(err)
	}
	r.wantSaid("reject 1")
	r.wantStats(idempotency.Stats{DeadLettered: 1, FailedAttempts: 1})
}

func TestAPanicIsAFailedAttemptWithItsStackInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{Attempts: 2, DeadLetterExchange: true})
		err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), func(ctx context.Context, tx *sql.Tx) error {
			if err := placeOrder("m1")(ctx, tx); err != nil {
				t.Error(err)
			}
			var customer *string
			_ = *customer
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		r.wantSaid("reject 1")
		r.wantRows(0, 0)
		r.wantStats(idempotency.Stats{DeadLettered: 1, FailedAttempts: 2})
		if log := r.log.String(); !strings.Contains(log, "nil pointer") || !strings.Contains(log, "guard_test.go") {
			t.Errorf("panic and stack are not in the log:\n%s", log)
		}
	})
}

func TestAHandlerThatEndsItsGoroutineLeavesNoTransactionOpen(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	var consumer sync.WaitGroup
	consumer.Go(func() {
		_ = r.guard.Handle(t.Context(), r.db, r.delivery("m1"), func(context.Context, *sql.Tx) error {
			runtime.Goexit() // as FailNow of a test does
			return nil
		})
	})
	consumer.Wait()
	r.wantSaid() // the delivery stays open until its channel is closed
	if err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), placeOrder("m1")); err != nil {
		t.Fatal(err)
	}
	r.wantRows(1, 1)
}

func TestAMessageWithoutAUsableIDIsNeverHandled(t *testing.T) {
	for name, id := range map[string]string{
		"empty":     "",
		"too long":  strings.Repeat("x", 256),
		"not UTF-8": "m\xff",
		"NUL":       "m\x00",
	} {
		t.Run(name, func(t *testing.T) {
			var reason error
			r := newReceiver(t, idempotency.Options{DeadLetter: func(_ context.Context, _ amqp.Delivery, why error) error {
				reason = why
				return nil
			}})
			for _, handle := range []func() error{
				func() error { return r.guard.Handle(t.Context(), r.db, r.delivery(id), mustNotRun(t)) },
				func() error { return r.guard.Accept(t.Context(), r.db, r.delivery(id)) },
				func() error {
					return r.guard.AtMostOnce(t.Context(), r.db, r.delivery(id), func(context.Context, amqp.Delivery) error {
						t.Error("the effect ran")
						return nil
					})
				},
			} {
				reason = nil
				if err := handle(); err != nil {
					t.Fatal(err)
				}
				if reason == nil || !strings.HasPrefix(reason.Error(), "message ID ") {
					t.Errorf("reason is %v", reason)
				}
			}
			r.wantSaid("ack 1", "ack 2", "ack 3")
			r.wantRows(0, 0)
			r.wantNothingPending()
			r.wantStats(idempotency.Stats{DeadLettered: 3})
		})
	}
}

func TestTheLongestIDIsHandled(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	id := strings.Repeat("é", 127) + "x"
	for range 2 {
		if err := r.guard.Handle(t.Context(), r.db, r.delivery(id), placeOrder(id)); err != nil {
			t.Fatal(err)
		}
	}
	r.wantRows(1, 1)
}

func TestAHandlerThatCommitsItselfIsNotRunTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{DeadLetterExchange: true})
		err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), func(ctx context.Context, tx *sql.Tx) error {
			return errors.Join(placeOrder("m1")(ctx, tx), tx.Commit())
		})
		if err != nil {
			t.Fatal(err)
		}
		r.wantSaid("ack 1")
		r.wantRows(1, 1)
		r.wantStats(idempotency.Stats{Duplicates: 1, FailedAttempts: 1})
	})
}

func TestAHandlerThatRollsBackItselfHasFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{DeadLetterExchange: true})
		err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), func(ctx context.Context, tx *sql.Tx) error {
			return tx.Rollback()
		})
		if err != nil {
			t.Fatal(err)
		}
		r.wantSaid("reject 1")
		r.wantRows(0, 0)
		r.wantStats(idempotency.Stats{DeadLettered: 1, FailedAttempts: 5})
		if !strings.Contains(r.log.String(), "ended the transaction itself") {
			t.Errorf("the log does not tell the reason:\n%s", r.log)
		}
	})
}
