package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
)

// inOwnTx claims the key and places an order in a transaction of the caller, which end ends.
func (r *receiver) inOwnTx(ctx context.Context, claim idempotency.Claim, end func(tx *sql.Tx) error) error {
	tx, err := r.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	fresh, err := claim(ctx, bridge.SQL(tx))
	if err == nil && fresh {
		err = receivertest.PlaceOrder("m1")(ctx, tx)
	}
	if err != nil || !fresh {
		return errors.Join(err, tx.Rollback())
	}
	return end(tx)
}

// If a commit's answer was lost, the check of the claim finds it, and it is not repeated. A
// rolled-back attempt is repeated. A claim that is not fresh ends the delivery.
func TestAMessageIsHandledOnceInTheCallersTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{DeadLetterExchange: true})
		runs := 0
		for range 2 {
			receivertest.Must(t, r.dedup.HandleWithClaim(t.Context(), r.Delivery("m1"), func(ctx context.Context, claim idempotency.Claim) error {
				return r.inOwnTx(ctx, claim, func(tx *sql.Tx) error {
					if runs++; runs == 1 {
						return errors.Join(receivertest.ErrHandler, tx.Rollback())
					}
					receivertest.Must(t, tx.Commit())
					return receivertest.ErrNetwork
				})
			}))
		}
		r.WantSaid("ack 1", "ack 2")
		r.WantRows(1, 1)
		r.wantStats(idempotency.Stats{Handled: 1, Duplicates: 1, FailedAttempts: 1})
	})
}

// The caller must claim, and must commit before it returns.
func TestADeliveryThatIsNotCommittedIsNotAcked(t *testing.T) {
	for name, fn := range map[string]func(r *receiver, ctx context.Context, claim idempotency.Claim) error{
		"without a claim": func(*receiver, context.Context, idempotency.Claim) error { return nil },
		"without a commit": func(r *receiver, ctx context.Context, claim idempotency.Claim) error {
			return r.inOwnTx(ctx, claim, func(tx *sql.Tx) error { return tx.Rollback() })
		},
		"with the transaction still open": func(r *receiver, ctx context.Context, claim idempotency.Claim) error {
			return r.inOwnTx(ctx, claim, func(tx *sql.Tx) error {
				r.Inbox.OnClaim = func(ctx context.Context) error { // the check waits, as on a server
					<-ctx.Done()
					return errors.Join(ctx.Err(), tx.Rollback())
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Attempts: 1})
				err := r.dedup.HandleWithClaim(t.Context(), r.Delivery("m1"), func(ctx context.Context, claim idempotency.Claim) error {
					return fn(r, ctx, claim)
				})
				if !errors.Is(err, idempotency.ErrHandedBack) {
					t.Errorf("got %v", err)
				}
				r.WantSaid("requeue 1")
				r.WantRows(0, 0)
				r.wantStats(idempotency.Stats{HandedBack: 1, FailedAttempts: 1})
			})
		})
	}
}

// A database that is silent while the claim is checked is not the handler's failure, however long
// it is silent, and the message that was handled is not dead-lettered.
func TestASilentDatabaseIsNotTheFailureOfTheHandler(t *testing.T) {
	for _, silence := range []time.Duration{5 * time.Second, 15 * time.Second, 25 * time.Second, 2 * time.Minute} {
		t.Run(silence.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Attempts: 1, DeadLetterExchange: true})
				var back time.Time
				silent := func(ctx context.Context) error {
					select {
					case <-time.After(time.Until(back)):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				receivertest.Must(t, r.dedup.HandleWithClaim(t.Context(), r.Delivery("m1"), func(ctx context.Context, claim idempotency.Claim) error {
					return r.inOwnTx(ctx, claim, func(tx *sql.Tx) error {
						receivertest.Must(t, tx.Commit())
						back = time.Now().Add(silence)
						r.Inbox.Before, r.Faults.OnPing = silent, silent
						return nil
					})
				}))
				r.WantSaid("ack 1")
				r.WantRows(1, 1)
				stats := r.dedup.Stats()
				if stats.FailedAttempts > 0 || stats.Handled+stats.Duplicates != 1 {
					t.Errorf("stats are %+v", stats)
				}
			})
		})
	}
}
