package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// InnoDB ends a transaction at a deadlock. Statements that come later are committed one by one, and
// the COMMIT succeeds: a handler that ignores the error must not be believed.
func TestADeadlockThatAHandlerIgnoresIsNoSuccess(t *testing.T) {
	for _, strategy := range []string{"Handle", "Latest", "HighWater", "Ordered", "Accept and Work"} {
		t.Run(strategy, func(t *testing.T) {
			db := newDatabase(t, "MariaDB")
			q := newQueue(t, limitless)
			q.publish("e:1")
			r, err := db.receiver(strategy, db.inbox, idempotency.Options{Attempts: 3, MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
			must(t, err)
			deadlock := servertest.NewDeadlock(t, db.DB)
			runs := 0
			handler := func(ctx context.Context, tx *sql.Tx, id string) error {
				runs++
				must(t, db.placeOrder(ctx, tx, id))
				if runs == 1 {
					_ = deadlock(servertest.InTx(ctx, tx))
				}
				_, err := tx.ExecContext(ctx, `SELECT 1`)
				return err
			}
			must(t, r.handle(t.Context(), next(t, q.consume()), handler))
			if r.beside != nil && runs < 2 {
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- r.beside(ctx, handler) }()
				eventually(t, "nothing is left", func() (bool, error) {
					left, err := r.left(t.Context())
					return !left, err
				})
				stop()
				must(t, servertest.Next(t, "the end of the worker", ended))
			}
			if got := db.placed(t)["e"]; runs != 2 || len(got) != 1 {
				t.Errorf("after %d runs orders %v are committed, must be one after two", runs, got)
			}
			q.wantEmpty()
		})
	}
}

// A CREATE TABLE commits claim and work on MySQL: the next attempt finds the claim.
func TestAStatementThatCommitsIsNoSuccess(t *testing.T) {
	db := newDatabase(t, "MariaDB")
	q := newQueue(t, limitless)
	q.publish("m1")
	guard := newGuard(t, db.inbox, idempotency.Options{MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
	must(t, guard.Handle(t.Context(), db.DB, next(t, q.consume()), func(ctx context.Context, tx *sql.Tx) error {
		must(t, db.placeOrder(ctx, tx, "m1"))
		_, err := tx.ExecContext(ctx, `CREATE TABLE archive (n INT)`)
		return err
	}))
	if got, want := guard.Stats(), (idempotency.Stats{Duplicates: 1, FailedAttempts: 1}); got != want {
		t.Errorf("stats are %+v, want %+v", got, want)
	}
	db.wantOrders(t, 1)
	q.wantEmpty()
}

// Where HandleTx's caller commits, the look at the claim tells.
func TestADeadlockThatTheCallerOfHandleTxIgnoresIsNoSuccess(t *testing.T) {
	db := newDatabase(t, "MariaDB")
	q := newQueue(t, limitless)
	q.publish("m1")
	guard := newGuard(t, db.inbox, idempotency.Options{MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
	deadlock := servertest.NewDeadlock(t, db.DB)
	runs := 0
	must(t, guard.HandleTx(t.Context(), next(t, q.consume()), func(ctx context.Context, claim idempotency.Claim) error {
		tx, err := db.BeginTx(ctx, nil)
		must(t, err)
		defer func() { _ = tx.Rollback() }()
		if fresh, err := claim(ctx, bridge.SQL(tx)); err != nil || !fresh {
			return errors.Join(err, errors.New("not fresh"))
		}
		must(t, db.placeOrder(ctx, tx, "m1"))
		if runs++; runs == 1 {
			_ = deadlock(servertest.InTx(ctx, tx))
		}
		return tx.Commit()
	}))
	if got, want := guard.Stats(), (idempotency.Stats{Handled: 1, FailedAttempts: 1}); got != want || runs != 2 {
		t.Errorf("%d runs, stats are %+v, want %+v", runs, got, want)
	}
	db.wantOrders(t, 1)
	q.wantEmpty()
}

// On the other databases the COMMIT itself fails.
func TestATransactionThatTheServerHasEndedDoesNotCommit(t *testing.T) {
	for name, spoil := range map[string]string{
		"PostgreSQL": `INSERT INTO nowhere VALUES (1)`,
		"SQLite":     `INSERT OR ROLLBACK INTO orders (n, id) VALUES (-1, 'x')`, // the second of these
	} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t, name)
			q := newQueue(t, limitless)
			q.publish("m1")
			guard := newGuard(t, db.inbox, idempotency.Options{MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
			runs := 0
			must(t, guard.Handle(t.Context(), db.DB, next(t, q.consume()), func(ctx context.Context, tx *sql.Tx) error {
				if runs++; runs > 1 {
					return db.placeOrder(ctx, tx, "m1")
				}
				_, _ = tx.ExecContext(ctx, spoil)
				_, err := tx.ExecContext(ctx, spoil)
				if err == nil {
					t.Error("the statement did not fail")
				}
				return nil
			}))
			if got, want := guard.Stats(), (idempotency.Stats{Handled: 1, FailedAttempts: 1}); got != want || runs != 2 {
				t.Errorf("%d runs, stats are %+v, want %+v", runs, got, want)
			}
			db.wantOrders(t, 1)
			q.wantEmpty()
		})
	}
}
