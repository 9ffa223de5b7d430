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

// failures is how often a database fails: more often than a handler may.
const failures = 8

// failingTimes returns a function that fails so often.
func failingTimes(n int) func() error {
	return func() error {
		if n--; n >= 0 {
			return errNetwork
		}
		return nil
	}
}

func TestAFailingDatabaseDoesNotCountAgainstTheMessage(t *testing.T) {
	for name, c := range map[string]struct {
		fail func(r *receiver)
		dies int // how often the handler's connection does
		want idempotency.Stats
	}{
		"no connection": {func(r *receiver) {
			r.faults.killAll()
			r.faults.connect = failingTimes(failures)
		}, 0, idempotency.Stats{Handled: 1}},
		"no claim":            {func(r *receiver) { r.inbox.failures.Store(failures) }, 0, idempotency.Stats{Handled: 1}},
		"dies in the handler": {func(*receiver) {}, failures, idempotency.Stats{Handled: 1}},
		"commit, not done, no answer": {func(r *receiver) {
			lost := failingTimes(failures)
			r.faults.commit = func(commit func() error) error {
				if err := lost(); err != nil {
					return err
				}
				return commit()
			}
		}, 0, idempotency.Stats{Handled: 1}},
		"commit, done, no answer": {func(r *receiver) {
			r.faults.commit = func(commit func() error) error { return errors.Join(commit(), errNetwork) }
		}, 0, idempotency.Stats{Duplicates: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Attempts: 1, DeadLetterExchange: true})
				c.fail(r)
				dies := failingTimes(c.dies)
				r.handle(func(ctx context.Context, tx *sql.Tx) error {
					if dies() != nil {
						r.faults.killAll()
					}
					return placeOrder("m1")(ctx, tx)
				})
				r.wantSaid("ack 1")
				r.wantRows(1, 1)
				r.wantStats(c.want)
			})
		})
	}
}

func TestADatabaseThatStaysAwayHandsTheMessageBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, idempotency.Options{DeadLetterExchange: true, Hold: time.Hour})
		r.inbox.failures.Store(1 << 30)
		start := time.Now()
		err := r.guard.Handle(t.Context(), r.db, r.delivery("m1"), mustNotRun(t))
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
