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

func TestShutdownAndTooLongAHoldHandBackAtOnceAndAreNoFailedAttempt(t *testing.T) {
	for name, c := range map[string]struct {
		stopped bool // before the attempt
		fn      func(ctx context.Context, tx *sql.Tx, stop func()) error
		cause   error
		says    string
		failed  uint64
	}{
		"shutdown before the attempt": {true, nil, context.Canceled, "", 0},
		"shutdown while the handler runs": {false, func(ctx context.Context, _ *sql.Tx, stop func()) error {
			stop()
			return ctx.Err()
		}, context.Canceled, "", 0},
		"shutdown in a handler that ignores it": {false, func(_ context.Context, tx *sql.Tx, stop func()) error {
			err := placeOrder("m1")(context.Background(), tx)
			stop()
			return err
		}, context.Canceled, "", 0},
		"shutdown in a pause": {false, func(_ context.Context, _ *sql.Tx, stop func()) error {
			time.AfterFunc(time.Second, stop)
			return errHandler
		}, context.Canceled, "", 1},
		"a handler that outlasts Hold": {false, func(ctx context.Context, _ *sql.Tx, _ func()) error {
			<-ctx.Done()
			return ctx.Err()
		}, context.DeadlineExceeded, "Options.Hold", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{DeadLetterExchange: true, MinDelay: time.Hour, MaxDelay: time.Hour, Hold: 2 * time.Hour})
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if c.stopped {
					stop()
				}
				err := r.guard.Handle(ctx, r.db, r.delivery("m1"), func(ctx context.Context, tx *sql.Tx) error { return c.fn(ctx, tx, stop) })
				wantHandedBack(t, r, err, c.cause)
				if !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v does not name %s", err, c.says)
				}
				r.wantStats(idempotency.Stats{HandedBack: 1, FailedAttempts: c.failed})
				if log := r.log.String(); log != "" && c.failed == 0 {
					t.Errorf("this is worth no line, got %s", log)
				}
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
	r.wantSaid("requeue 1")
	r.wantRows(0, 0)
}

// The outcome stands although the broker did not hear of it, and the redelivery does not repeat it.
func TestAnAckOrARejectionThatIsLost(t *testing.T) {
	for name, c := range map[string]struct {
		opts  idempotency.Options
		fn    func(context.Context, *sql.Tx) error
		want  error
		stats idempotency.Stats
	}{
		"of what is handled": {idempotency.Options{}, placeOrder("m1"),
			idempotency.ErrNotAcked, idempotency.Stats{Handled: 1, NotAcked: 1}},
		"of what is rejected": {idempotency.Options{Attempts: 1, DeadLetterExchange: true, MaxDelay: time.Millisecond, MinDelay: time.Millisecond}, failing,
			idempotency.ErrHandedBack, idempotency.Stats{HandedBack: 1, FailedAttempts: 1}},
		"of what is dead-lettered": {idempotency.Options{Attempts: 1, DeadLetter: func(context.Context, amqp.Delivery, error) error { return nil }}, failing,
			idempotency.ErrNotAcked, idempotency.Stats{DeadLettered: 1, FailedAttempts: 1, NotAcked: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t, c.opts)
			r.channel.err = amqp.ErrClosed
			err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), c.fn)
			other := idempotency.ErrHandedBack
			if c.want == other {
				other = idempotency.ErrNotAcked
			}
			if !errors.Is(err, c.want) || errors.Is(err, other) || !errors.Is(err, amqp.ErrClosed) {
				t.Errorf("got %v", err)
			}
			r.wantStats(c.stats)
			r.channel.err = nil
			r.handle(placeOrder("m1"))
			r.wantSaid("ack 2")
			r.wantRows(1, 1)
		})
	}
}
