package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/versions"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// InnoDB ends a transaction at a deadlock. The statements that follow are committed one by one,
// and the COMMIT succeeds. So the success of a handler that ignores the error must not count.
func TestADeadlockThatAHandlerIgnoresIsNoSuccess(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"Handle", "Ordered", "Accept and Work"} {
		t.Run(strategy, func(t *testing.T) {
			db := newDatabase(t, "MariaDB")
			q := newQueue(t, limitless)
			q.publish("e:1")
			r, err := db.receiver(strategy, db.inbox, versions.Options{Attempts: 3, MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
			must(t, err)
			deadlock := servertest.NewDeadlock(t, db.DB)
			runs := 0
			handler := func(ctx context.Context, tx bridge.Tx, id string) error {
				runs++
				must(t, db.place(ctx, tx, id))
				if runs == 1 {
					_ = deadlock(func(statement string) error {
						_, err := tx.Exec(ctx, statement)
						return err
					})
				}
				_, err := tx.Exec(ctx, `SELECT 1`)
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

// On MySQL a CREATE TABLE commits claim and work. The next attempt finds the claim.
func TestAStatementThatCommitsIsNoSuccess(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "MariaDB")
	q := newQueue(t, limitless)
	q.publish("m1")
	dedup := newDedup(t, db.inbox, idempotency.Options{MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
	must(t, dedup.Handle(t.Context(), db.DB, next(t, q.consume()), func(ctx context.Context, tx *sql.Tx) error {
		must(t, db.placeOrder(ctx, tx, "m1"))
		_, err := tx.ExecContext(ctx, `CREATE TABLE archive (n INT)`)
		return err
	}))
	if got, want := dedup.Stats(), (idempotency.Stats{Duplicates: 1, FailedAttempts: 1}); got != want {
		t.Errorf("stats are %+v, want %+v", got, want)
	}
	db.wantOrders(t, 1)
	q.wantEmpty()
}

// When HandleWithClaim's caller commits, a look at the claim reveals the lost transaction.
func TestADeadlockThatTheCallerOfHandleWithClaimIgnoresIsNoSuccess(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "MariaDB")
	q := newQueue(t, limitless)
	q.publish("m1")
	dedup := newDedup(t, db.inbox, idempotency.Options{MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
	deadlock := servertest.NewDeadlock(t, db.DB)
	runs := 0
	must(t, dedup.HandleWithClaim(t.Context(), next(t, q.consume()), func(ctx context.Context, claim idempotency.Claim) error {
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
	if got, want := dedup.Stats(), (idempotency.Stats{Handled: 1, FailedAttempts: 1}); got != want || runs != 2 {
		t.Errorf("%d runs, stats are %+v, want %+v", runs, got, want)
	}
	db.wantOrders(t, 1)
	q.wantEmpty()
}

// On the other databases the COMMIT itself fails, as it does at a constraint that it checks.
func TestATransactionThatTheServerHasEndedDoesNotCommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ store, spoil string }{
		"a swallowed error":           {"PostgreSQL", `INSERT INTO nowhere VALUES (1)`},
		"a deferred constraint":       {"PostgreSQL", `CREATE TABLE invoices (n bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED); INSERT INTO invoices VALUES (-1)`},
		"a statement that rolls back": {"SQLite", `INSERT INTO orders (n, id) VALUES (-1, 'x'); INSERT OR ROLLBACK INTO orders (n, id) VALUES (-1, 'x')`},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t, c.store)
			q := newQueue(t, limitless)
			q.publish("m1")
			dedup := newDedup(t, db.inbox, idempotency.Options{MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
			runs := 0
			must(t, dedup.Handle(t.Context(), db.DB, next(t, q.consume()), func(ctx context.Context, tx *sql.Tx) error {
				if runs++; runs > 1 {
					return db.placeOrder(ctx, tx, "m1")
				}
				_, _ = tx.ExecContext(ctx, c.spoil)
				return nil
			}))
			if got, want := dedup.Stats(), (idempotency.Stats{Handled: 1, FailedAttempts: 1}); got != want || runs != 2 {
				t.Errorf("%d runs, stats are %+v, want %+v", runs, got, want)
			}
			db.wantOrders(t, 1)
			q.wantEmpty()
		})
	}
}

// A deadlock, a serialization failure, or a lock wait that the server has ended is not the
// message's fault.
func TestAFailureOfTheDatabaseCountsAgainstNoMessage(t *testing.T) {
	t.Parallel()
	postgres, mariadb := newDatabase(t, "PostgreSQL"), newDatabase(t, "MariaDB")
	q := newQueue(t, quorumToDead)
	raise := func(state string) string {
		return `DO $$ BEGIN RAISE EXCEPTION 'the server says' USING ERRCODE = '` + state + `'; END $$`
	}
	deadlock := servertest.NewDeadlock(t, mariadb.DB)
	const lock = `SELECT id FROM orders WHERE n = -1 FOR UPDATE`
	_, err := mariadb.ExecContext(t.Context(), `INSERT INTO orders (n, id) VALUES (-1, 'locked')`)
	must(t, err)
	for name, c := range map[string]struct {
		*database
		fails     func(ctx context.Context, tx *sql.Tx) error // nil: statement fails
		statement string
		counts    bool
	}{
		"failed serialization":    {postgres, nil, raise("40001"), false},
		"deadlock":                {postgres, nil, raise("40P01"), false},
		"lock_timeout":            {postgres, nil, raise("55P03"), false},
		"disk full":               {postgres, nil, raise("53100"), false},
		"admin shutdown":          {postgres, nil, raise("57P01"), false},
		"a killed session":        {postgres, nil, `SELECT pg_terminate_backend(pg_backend_pid())`, false},
		"unique violation":        {postgres, nil, raise("23505"), true},
		"MariaDB's duplicate key": {mariadb, nil, `INSERT INTO orders (n, id) VALUES (-2, 'twice'), (-2, 'twice')`, true},
		"MariaDB's deadlock":      {mariadb, func(ctx context.Context, tx *sql.Tx) error { return deadlock(servertest.InTx(ctx, tx)) }, "", false},
		"innodb_lock_wait_timeout": {mariadb, func(ctx context.Context, tx *sql.Tx) error {
			holder, err := mariadb.BeginTx(ctx, nil)
			must(t, err)
			defer func() { must(t, holder.Rollback()) }()
			var id string
			must(t, holder.QueryRowContext(ctx, lock).Scan(&id))
			_, err = tx.ExecContext(ctx, `SET innodb_lock_wait_timeout = 1`)
			must(t, err)
			return tx.QueryRowContext(ctx, lock).Scan(&id)
		}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			q.publish(name)
			dedup := newDedup(t, c.inbox, strict)
			runs := 0
			must(t, dedup.Handle(t.Context(), c.DB, next(t, q.consume()), func(ctx context.Context, tx *sql.Tx) (err error) {
				if runs++; runs > 1 {
					return c.placeOrder(ctx, tx, name)
				}
				if c.fails != nil {
					err = c.fails(ctx, tx)
				} else {
					_, err = tx.ExecContext(ctx, c.statement)
				}
				if err == nil {
					t.Error("it did not fail")
				}
				return err
			}))
			want := idempotency.Stats{Handled: 1}
			if c.counts {
				want = idempotency.Stats{DeadLettered: 1, FailedAttempts: 1}
			}
			if got := dedup.Stats(); got != want {
				t.Errorf("stats are %+v, want %+v", got, want)
			}
			q.wantEmpty()
		})
	}
}
