package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twoqueue/twoqueue/idempotency"
)

// strict gives up after the first failure that counts.
var strict = idempotency.Options{Attempts: 1, DeadLetterExchange: true}

func TestAFailingDatabaseDoesNotCountAgainstTheMessage(t *testing.T) {
	for name, fail := range map[string]func(*receiver){
		"no connection": func(r *receiver) {
			r.faults.killAll()
			left := 8
			r.faults.connect = func() error {
				if left--; left >= 0 {
					return errNetwork
				}
				return nil
			}
		},
		"no claim": func(r *receiver) { r.inbox.failures.Store(8) },
		"commit, not done, no answer": func(r *receiver) {
			left := 8
			r.faults.commit = func(commit func() error) error {
				if left--; left >= 0 {
					return errNetwork
				}
				return commit()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, strict)
				fail(r)
				if err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), placeOrder("m1")); err != nil {
					t.Fatal(err)
				}
				r.wantSaid("ack 1")
				r.wantRows(1, 1)
				r.wantStats(idempotency.Stats{Handled: 1})
			})
		})
	}
}

func TestAHandlerWhoseConnectionDiesIsNotToBlame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, strict)
		runs := 0
		err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), func(ctx context.Context, tx *sql.Tx) error {
			if runs++; runs < 4 {
				r.faults.killAll()
			}
			return placeOrder("m1")(ctx, tx)
		})
		if err != nil {
			t.Fatal(err)
		}
		r.wantSaid("ack 1")
		r.wantRows(1, 1)
		r.wantStats(idempotency.Stats{Handled: 1})
	})
}

func TestADatabaseThatStaysAwayHandsTheMessageBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{DeadLetterExchange: true, Hold: time.Hour})
		r.inbox.failures.Store(1 << 30)
		start := time.Now()
		err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), mustNotRun(t))
		if !errors.Is(err, errNetwork) {
			t.Errorf("the error does not tell why: %v", err)
		}
		if held := time.Since(start); held != time.Hour {
			t.Errorf("held for %v, want an hour", held)
		}
		wantHandedBack(t, r, err, errNetwork)
		r.wantStats(idempotency.Stats{HandedBack: 1})
		// An hour of pauses of 10 s, give or take a half each.
		if tries := 1<<30 - int(r.inbox.failures.Load()); tries < 240 || tries > 480 {
			t.Errorf("tried %d times in an hour", tries)
		}
	})
}

func TestACommitWhoseAnswerIsLostIsFoundByTheNextClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, strict)
		r.faults.commit = func(commit func() error) error { return errors.Join(commit(), errNetwork) }
		if err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), placeOrder("m1")); err != nil {
			t.Fatal(err)
		}
		r.wantSaid("ack 1")
		r.wantRows(1, 1)
		r.wantStats(idempotency.Stats{Duplicates: 1})
	})
}

func TestACommitThatTheDatabaseRefusesIsTheHandlersFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{Attempts: 2, DeadLetterExchange: true})
		r.exec(`CREATE TABLE customers (id TEXT PRIMARY KEY)`)
		r.exec(`CREATE TABLE invoices (customer TEXT REFERENCES customers DEFERRABLE INITIALLY DEFERRED)`)
		err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO invoices VALUES ('nobody')`)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		r.wantSaid("reject 1")
		r.wantRows(0, 0)
		r.wantStats(idempotency.Stats{DeadLettered: 1, FailedAttempts: 2})

		if err := r.guard.Handle(t.Context(), r.db, r.delivery("m2"), placeOrder("m2")); err != nil {
			t.Fatal(err)
		}
		r.wantRows(1, 1)
	})
}
