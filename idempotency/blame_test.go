package idempotency_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
)

func refusal(code int) error {
	return fmt.Errorf("publish: %w: %w", bridge.ErrUnavailable, &amqp.Error{Code: code, Server: true, Recover: true})
}

func TestOnlyTheHandlersOwnFailureCounts(t *testing.T) {
	n := 0
	for err, counts := range map[error]bool{
		receivertest.ErrHandler:                                                              true,
		&bridge.PublishError{Err: bridge.ErrNacked}:                                          false,
		&bridge.PublishError{Err: bridge.ErrReturned}:                                        false,
		&bridge.PublishError{Err: bridge.ErrUnconfirmed}:                                     false,
		&bridge.PublishError{Err: bridge.ErrInvalidMessage}:                                  true,
		fmt.Errorf("send: %w", bridge.ErrUnavailable):                                        false,
		fmt.Errorf("send: %w", bridge.ErrBlocked):                                            false,
		fmt.Errorf("send: %w", bridge.ErrCredentials):                                        false,
		refusal(amqp.AccessRefused):                                                          false,
		refusal(amqp.NotFound):                                                               false,
		refusal(amqp.PreconditionFailed):                                                     true, // its reply is too large
		fmt.Errorf("commit: %w: lost", bridge.ErrCommitUnknown):                              false,
		fmt.Errorf("begin: %w", sqldriver.ErrBadConn):                                        false,
		idempotency.RetryLater(receivertest.ErrHandler, 0):                                   false,
		fmt.Errorf("call: %w", idempotency.RetryLater(receivertest.ErrHandler, time.Second)): false,
		backoff.Permanent(idempotency.RetryLater(receivertest.ErrHandler, 0)):                true,
		idempotency.RetryLater(nil, 0):                                                       false,
		&busyError{5}:                                                                        false, // SQLITE_BUSY
		&busyError{1555}:                                                                     true,  // a primary key
		fmt.Errorf("a timeout of the handler's own: %w", context.DeadlineExceeded):           true,
	} {
		n++
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Attempts: 1, DeadLetterExchange: true})
				runs := 0
				r.handle(func(ctx context.Context, tx *sql.Tx) error {
					if runs++; runs < 4 {
						return err
					}
					if counts {
						t.Errorf("%v did not count", err)
					}
					return receivertest.PlaceOrder("m1")(ctx, tx)
				})
				want := idempotency.Stats{Handled: 1}
				if counts {
					want = idempotency.Stats{DeadLettered: 1, FailedAttempts: 1}
				}
				r.wantStats(want)
			})
		})
	}
}

type busyError struct{ code int }

func (e *busyError) Error() string { return fmt.Sprint("SQLite says ", e.code) }
func (e *busyError) Code() int     { return e.code }

func TestRetryLaterWaitsAsLongAsItSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{})
		var begun []time.Time
		r.handle(func(context.Context, *sql.Tx) error {
			if begun = append(begun, time.Now()); len(begun) == 1 {
				return idempotency.RetryLater(receivertest.ErrHandler, 3*time.Minute)
			}
			return nil
		})
		if pause := begun[1].Sub(begun[0]); pause != 3*time.Minute {
			t.Errorf("paused for %v", pause)
		}
	})
}

// While a dependency restarts, messages do not go to the dead queue. If it fails for good, a
// message is kept for minutes, within Options.Hold.
func TestAFailingHandlerIsRetriedForMinutesByDefault(t *testing.T) {
	for away, want := range map[time.Duration]idempotency.Stats{
		100 * time.Second: {Handled: 1},
		time.Hour:         {DeadLettered: 1},
	} {
		t.Run(fmt.Sprint("away for ", away), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{DeadLetterExchange: true})
				back := time.Now().Add(away)
				begun := time.Now()
				r.handle(func(ctx context.Context, tx *sql.Tx) error {
					if time.Now().Before(back) {
						return receivertest.ErrHandler
					}
					return nil
				})
				stats := r.dedup.Stats()
				stats.FailedAttempts = 0
				if stats != want {
					t.Errorf("stats are %+v, want %+v", stats, want)
				}
				if took := time.Since(begun); want.DeadLettered > 0 && (took < 110*time.Second || took > 6*time.Minute) { // pauses of 222 s, varied by a half
					t.Errorf("it was given up after %v", took)
				}
			})
		})
	}
}

// A handler that takes so long that Hold ends before its last attempt still fails for good.
func TestFailuresAreRememberedWhenAMessageIsHandedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{Attempts: 5, MinDelay: time.Second, MaxDelay: time.Second, Hold: time.Minute, DeadLetterExchange: true})
		runs := 0
		slow := func(context.Context, *sql.Tx) error {
			runs++
			<-time.After(25 * time.Second)
			return receivertest.ErrHandler
		}
		for n := range 3 {
			err := r.dedup.Handle(t.Context(), r.DB, r.Delivery("m1"), slow)
			if n < 2 && !errors.Is(err, idempotency.ErrHandedBack) || n == 2 && err != nil {
				t.Errorf("delivery %d: %v", n+1, err)
			}
		}
		r.WantSaid("requeue 1", "requeue 2", "reject 3")
		r.wantStats(idempotency.Stats{HandedBack: 2, DeadLettered: 1, FailedAttempts: 5})
		if runs < 5 {
			t.Errorf("%d attempts", runs)
		}
	})
}
