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
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
)

// A receiver that stops leaves its messages to the end of the channel. A receiver that goes on
// hands them back.
func TestShutdownAndTooLongAHoldAreNoFailedAttempt(t *testing.T) {
	for name, c := range map[string]struct {
		stopped bool // before the attempt
		away    bool // the database, until the shutdown
		fn      func(ctx context.Context, tx *sql.Tx, stop func()) error
		cause   error
		says    string
		want    idempotency.Stats
	}{
		"shutdown before the attempt":         {true, false, nil, context.Canceled, "", idempotency.Stats{LeftUnacked: 1}},
		"shutdown while the database is away": {false, true, nil, context.Canceled, "", idempotency.Stats{LeftUnacked: 1}},
		"shutdown while the handler runs": {false, false, func(ctx context.Context, _ *sql.Tx, stop func()) error {
			stop()
			<-ctx.Done()
			return ctx.Err()
		}, context.Canceled, "", idempotency.Stats{LeftUnacked: 1}},
		"shutdown in a handler that ignores it for too long": {false, false, func(_ context.Context, tx *sql.Tx, stop func()) error {
			err := receivertest.PlaceOrder("m1")(context.Background(), tx)
			stop()
			<-time.After(time.Minute)
			return err
		}, context.Canceled, "", idempotency.Stats{LeftUnacked: 1}},
		"a handler that fails after a shutdown": {false, false, func(_ context.Context, _ *sql.Tx, stop func()) error {
			stop()
			return receivertest.ErrHandler
		}, context.Canceled, "", idempotency.Stats{LeftUnacked: 1}},
		"shutdown in a pause": {false, false, func(_ context.Context, _ *sql.Tx, stop func()) error {
			time.AfterFunc(time.Second, stop)
			return receivertest.ErrHandler
		}, context.Canceled, "", idempotency.Stats{LeftUnacked: 1, FailedAttempts: 1}},
		"a handler that outlasts Hold": {false, false, func(ctx context.Context, _ *sql.Tx, _ func()) error {
			<-ctx.Done()
			return ctx.Err()
		}, context.DeadlineExceeded, "Options.Hold", idempotency.Stats{HandedBack: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{DeadLetterExchange: true, MinDelay: time.Hour, MaxDelay: time.Hour, Hold: 2 * time.Hour})
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if c.stopped {
					stop()
				}
				if c.away {
					r.Inbox.Failures.Store(1 << 30)
					time.AfterFunc(time.Minute, stop)
				}
				begun := time.Now()
				err := r.dedup.Handle(ctx, r.DB, r.Delivery("m1"), func(ctx context.Context, tx *sql.Tx) error { return c.fn(ctx, tx, stop) })
				if pauses := c.away || c.want.FailedAttempts > 0; pauses && time.Since(begun) > time.Minute {
					t.Errorf("the pause has not ended with the shutdown, but after %v", time.Since(begun))
				}
				if c.want.LeftUnacked == 1 {
					wantLeft(t, r, err)
				} else {
					wantHandedBack(t, r, err, c.cause)
				}
				if !errors.Is(err, c.cause) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v does not name %s", err, c.says)
				}
				r.wantStats(c.want)
				if log := r.Log.String(); log != "" && c.want.FailedAttempts == 0 && !c.away {
					t.Errorf("this is worth no line, got %s", log)
				}
			})
		})
	}
}

func wantLeft(t *testing.T, r *receiver, err error) {
	t.Helper()
	if !errors.Is(err, idempotency.ErrLeftUnacked) || errors.Is(err, idempotency.ErrHandedBack) {
		t.Errorf("got %v, want left unacked", err)
	}
	r.WantSaid()
	r.WantRows(0, 0)
}

// A deadline may be meant for one delivery. Its receiver goes on, and must not keep the delivery.
func TestADeadlineOfTheCallerHandsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{Drain: -1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		waiting := func(ctx context.Context, _ *sql.Tx) error {
			<-ctx.Done()
			return ctx.Err()
		}
		wantHandedBack(t, r, r.dedup.Handle(ctx, r.DB, r.Delivery("m1"), waiting), context.DeadlineExceeded)
		if err := r.dedup.Handle(ctx, r.DB, r.Delivery("m1"), waiting); !errors.Is(err, idempotency.ErrLeftUnacked) {
			t.Errorf("a call after the deadline got %v", err)
		}
		r.WantSaid("requeue 1")
	})
}

// At a stop the running attempt may finish, within Options.Drain.
func TestAStopLetsTheAttemptInProgressFinish(t *testing.T) {
	const drain = time.Minute
	for name, c := range map[string]struct {
		takes time.Duration
		done  int
	}{
		"quick enough": {drain - time.Second, 1},
		"too slow":     {drain + time.Second, 0},
	} {
		handler := func(stop func()) func(ctx context.Context, tx *sql.Tx) error {
			return func(ctx context.Context, tx *sql.Tx) error {
				stop()
				select {
				case <-time.After(c.takes):
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				return receivertest.PlaceOrder("m1")(ctx, tx)
			}
		}
		t.Run("Handle, "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Drain: drain})
				ctx, stop := context.WithCancel(t.Context())
				err := r.dedup.Handle(ctx, r.DB, r.Delivery("m1"), handler(stop))
				if c.done == 0 {
					wantLeft(t, r, err)
					return
				}
				receivertest.Must(t, err)
				r.WantSaid("ack 1")
				r.WantRows(1, 1)
			})
		})
	}
}

func wantHandedBack(t *testing.T, r *receiver, err, cause error) {
	t.Helper()
	if !errors.Is(err, idempotency.ErrHandedBack) || !errors.Is(err, cause) {
		t.Fatalf("got %v, want handed back because of %v", err, cause)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than a line: %q", err)
	}
	r.WantSaid("requeue 1")
	r.WantRows(0, 0)
}

// The outcome stands although the broker did not get it, and the redelivery does not repeat the
// effects.
func TestALostAckOrRejectionKeepsTheOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		opts  idempotency.Options
		fn    func(context.Context, *sql.Tx) error
		want  error
		stats idempotency.Stats
	}{
		"of a handled message": {idempotency.Options{}, receivertest.PlaceOrder("m1"),
			idempotency.ErrNotAcked, idempotency.Stats{Handled: 1, NotAcked: 1}},
		"of a rejected message": {idempotency.Options{Attempts: 1, DeadLetterExchange: true, MaxDelay: time.Millisecond, MinDelay: time.Millisecond}, receivertest.Failing,
			idempotency.ErrHandedBack, idempotency.Stats{HandedBack: 1, FailedAttempts: 1}},
		"of a dead-lettered message": {idempotency.Options{Attempts: 1, DeadLetter: func(context.Context, amqp.Delivery, error) error { return nil }}, receivertest.Failing,
			idempotency.ErrNotAcked, idempotency.Stats{DeadLettered: 1, FailedAttempts: 1, NotAcked: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t, c.opts)
			r.Channel.Err = amqp.ErrClosed
			err := r.dedup.Handle(t.Context(), r.DB, r.Delivery("m1"), c.fn)
			other := idempotency.ErrHandedBack
			if c.want == other {
				other = idempotency.ErrNotAcked
			}
			if !errors.Is(err, c.want) || errors.Is(err, other) || !errors.Is(err, amqp.ErrClosed) {
				t.Errorf("got %v", err)
			}
			r.wantStats(c.stats)
			r.Channel.Err = nil
			r.handle(receivertest.PlaceOrder("m1"))
			r.WantSaid("ack 2")
			r.WantRows(1, 1)
		})
	}
}
