package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
)

// inTx is a caller's own way to run a transaction.
func (db *database) inTx(ctx context.Context, work func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func TestInTheCallersTransactionAMessageIsHandledOnce(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		q := newQueue(t, quorumToDead)
		q.publish("m1", "m1", "m2")
		guard := newGuard(t, db.inbox, idempotency.Options{Attempts: 3, MinDelay: time.Millisecond, MaxDelay: time.Millisecond, DeadLetterExchange: true})
		deliveries := q.consume()
		failures := 1
		for range 3 {
			d := next(t, deliveries)
			err := guard.HandleTx(t.Context(), d, func(ctx context.Context, claim idempotency.Claim) error {
				return db.inTx(ctx, func(tx *sql.Tx) error {
					if fresh, err := claim(ctx, bridge.SQL(tx)); err != nil || !fresh {
						return err
					}
					if err := db.placeOrder(ctx, tx, d.MessageId); err != nil {
						return err
					}
					if failures--; failures == 0 {
						return errHandler // and it is rolled back
					}
					return nil
				})
			})
			if err != nil {
				t.Error(err)
			}
		}
		if got, want := guard.Stats(), (idempotency.Stats{Handled: 2, Duplicates: 1, FailedAttempts: 1}); got != want {
			t.Errorf("stats are %+v, want %+v", got, want)
		}
		db.wantOrders(t, 2)
		q.wantEmpty()
	})
}

// What the caller must keep: to claim, to commit, and to do so before it returns.
func TestWhatIsNotCommittedIsNotAcked(t *testing.T) {
	db := newPostgres(t)
	var open *sql.Tx
	for name, fn := range map[string]func(ctx context.Context, claim idempotency.Claim) error{
		"without a claim": func(context.Context, idempotency.Claim) error { return nil },
		"without a commit": func(ctx context.Context, claim idempotency.Claim) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			_, err = claim(ctx, bridge.SQL(tx))
			return err
		},
		"with the transaction still open": func(_ context.Context, claim idempotency.Claim) (err error) {
			if open, err = db.BeginTx(t.Context(), nil); err == nil {
				_, err = claim(t.Context(), bridge.SQL(open))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(t, quorum)
			q.publish("m1")
			guard := newGuard(t, db.inbox, idempotency.Options{Attempts: 1, MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
			err := guard.HandleTx(t.Context(), next(t, q.consume()), fn)
			if !errors.Is(err, idempotency.ErrHandedBack) {
				t.Errorf("got %v", err)
			}
			if open != nil {
				_ = open.Rollback()
				open = nil
			}
			if got, want := guard.Stats(), (idempotency.Stats{HandedBack: 1, FailedAttempts: 1}); got != want {
				t.Errorf("stats are %+v, want %+v", got, want)
			}
			q.stopConsumers()
			if d := next(t, q.consume()); d.MessageId != "m1" {
				t.Errorf("got message %q", d.MessageId)
			}
		})
	}
}

// A commit whose answer was lost: the claim is found, and the message is acked without
// another run of the work, also if no further attempt is left.
func TestAnErrorAfterTheCommitIsFoundOut(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		q := newQueue(t, quorumToDead)
		q.publish("m1")
		guard := newGuard(t, db.inbox, idempotency.Options{Attempts: 1, MinDelay: time.Millisecond, MaxDelay: time.Millisecond, DeadLetterExchange: true})
		runs := 0
		err := guard.HandleTx(t.Context(), next(t, q.consume()), func(ctx context.Context, claim idempotency.Claim) error {
			runs++
			err := db.inTx(ctx, func(tx *sql.Tx) error {
				if fresh, err := claim(ctx, bridge.SQL(tx)); err != nil || !fresh {
					return err
				}
				return db.placeOrder(ctx, tx, "m1")
			})
			if err == nil && runs == 1 {
				err = errors.New("the answer was lost")
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		if runs != 1 {
			t.Errorf("%d runs", runs)
		}
		db.wantOrders(t, 1)
		q.wantEmpty()
	})
}
