package idempotency_test

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
)

func TestShutdownHandsBackAtOnceAndIsNoFailedAttempt(t *testing.T) {
	t.Run("before the attempt", func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantHandedBack(t, r, r.guard.Handle(ctx, r.db, r.delivery("m1"), mustNotRun(t)), context.Canceled)
		r.wantStats(idempotency.Stats{HandedBack: 1})
	})
	t.Run("while the handler runs", func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{Attempts: 1, DeadLetterExchange: true})
		ctx, cancel := context.WithCancel(t.Context())
		err := r.guard.Handle(ctx, r.db, r.delivery("m1"), func(ctx context.Context, tx *sql.Tx) error {
			cancel()
			return ctx.Err()
		})
		wantHandedBack(t, r, err, context.Canceled)
		r.wantStats(idempotency.Stats{HandedBack: 1})
		if log := r.log.String(); log != "" {
			t.Errorf("shutdown is worth no line, got %s", log)
		}
	})
	t.Run("in a handler that ignores it", func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{Attempts: 1, DeadLetterExchange: true})
		ctx, cancel := context.WithCancel(t.Context())
		err := r.guard.Handle(ctx, r.db, r.delivery("m1"), func(_ context.Context, tx *sql.Tx) error {
			if err := placeOrder("m1")(context.Background(), tx); err != nil {
				t.Error(err)
			}
			cancel()
			return nil
		})
		wantHandedBack(t, r, err, context.Canceled)
		r.wantStats(idempotency.Stats{HandedBack: 1})
		if log := r.log.String(); log != "" {
			t.Errorf("shutdown is worth no line, got %s", log)
		}
	})
	t.Run("in a pause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newReceiver(t, idempotency.Options{MinDelay: time.Minute, MaxDelay: time.Minute})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			wantHandedBack(t, r, r.guard.Handle(ctx, r.db, r.delivery("m1"), failing), context.DeadlineExceeded)
			r.wantStats(idempotency.Stats{HandedBack: 1, FailedAttempts: 1})
		})
	})
}

func wantHandedBack(t *testing.T, r *receiver, err, cause error) {
	t.Helper()
	if !errors.Is(err, idempotency.ErrHandedBack) || !errors.Is(err, cause) {
		t.Errorf("got %v, want handed back because of %v", err, cause)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than a line: %q", err)
	}
	r.wantSaid("requeue 1")
	r.wantRows(0, 0)
}

func TestADeliveryIsNotHeldForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{Attempts: 1, DeadLetterExchange: true, Hold: time.Minute})
		err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), func(ctx context.Context, tx *sql.Tx) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if err == nil || !strings.Contains(err.Error(), "Options.Hold") {
			t.Errorf("the error does not name the limit: %v", err)
		}
		wantHandedBack(t, r, err, context.DeadlineExceeded)
		r.wantStats(idempotency.Stats{HandedBack: 1})
	})
}

func TestALostAckLeavesTheCommitAndTheRedeliveryIsADuplicate(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	r.channel.err = amqp.ErrClosed
	err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), placeOrder("m1"))
	if !errors.Is(err, idempotency.ErrNotAcked) || !errors.Is(err, amqp.ErrClosed) || errors.Is(err, idempotency.ErrHandedBack) {
		t.Errorf("got %v", err)
	}
	r.wantStats(idempotency.Stats{Handled: 1, NotAcked: 1})

	r.channel.err = nil
	if err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), mustNotRun(t)); err != nil {
		t.Fatal(err)
	}
	r.wantSaid("ack 2")
	r.wantRows(1, 1)
}

func TestAMessageWhoseRejectionIsLostIsNotDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{Attempts: 1, DeadLetterExchange: true})
		r.channel.err = amqp.ErrClosed
		err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), failing)
		if !errors.Is(err, idempotency.ErrHandedBack) || !errors.Is(err, amqp.ErrClosed) {
			t.Errorf("got %v", err)
		}
		r.wantStats(idempotency.Stats{HandedBack: 1, FailedAttempts: 1})
	})
}

func TestALostAckAfterDeadLetteringSaysSo(t *testing.T) {
	store := func(context.Context, amqp.Delivery, error) error { return nil }
	r := newReceiver(t, idempotency.Options{Attempts: 1, DeadLetter: store})
	r.channel.err = amqp.ErrClosed
	err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), failing)
	if !errors.Is(err, idempotency.ErrNotAcked) {
		t.Errorf("got %v", err)
	}
	r.wantStats(idempotency.Stats{DeadLettered: 1, FailedAttempts: 1, NotAcked: 1})
}
