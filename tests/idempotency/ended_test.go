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
	for _, strategy := range []string{"Handle", "Latest", "HighWater", "Ordered", "Accept and Work"} {
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

// On the other databases the COMMIT itself fails.
func TestATransactionThatTheServerHasEndedDoesNotCommit(t *testing.T) {
	for name, spoil := range map[string]string{
		"PostgreSQL": `INSERT INTO nowhere VALUES (1)`,
		"SQLite":     `INSERT OR ROLLBACK INTO orders (n, id) VALUES (-1, 'x')`, // the second execution
	} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t, name)
			q := newQueue(t, limitless)
			q.publish("m1")
			dedup := newDedup(t, db.inbox, idempotency.Options{MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
			runs := 0
			must(t, dedup.Handle(t.Context(), db.DB, next(t, q.consume()), func(ctx context.Context, tx *sql.Tx) error {
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
	raise := func(state string) func(t *testing.T, db *database) func(ctx context.Context, tx *sql.Tx) error {
		return func(*testing.T, *database) func(ctx context.Context, tx *sql.Tx) error {
			return func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `DO $$ BEGIN RAISE EXCEPTION 'the server says' USING ERRCODE = '`+state+`'; END $$`)
				return err
			}
		}
	}
	for name, c := range map[string]struct {
		store string
		fails func(t *testing.T, db *database) func(ctx context.Context, tx *sql.Tx) error
		want  idempotency.Stats
	}{
		"failed serialization": {"PostgreSQL", raise("40001"), idempotency.Stats{Handled: 1}},
		"deadlock":             {"PostgreSQL", raise("40P01"), idempotency.Stats{Handled: 1}},
		"lock_timeout":         {"PostgreSQL", raise("55P03"), idempotency.Stats{Handled: 1}},
		"disk full":            {"PostgreSQL", raise("53100"), idempotency.Stats{Handled: 1}},
		"admin shutdown":       {"PostgreSQL", raise("57P01"), idempotency.Stats{Handled: 1}},
		"unique violation":     {"PostgreSQL", raise("23505"), idempotency.Stats{DeadLettered: 1, FailedAttempts: 1}},
		"a killed session": {"PostgreSQL", func(*testing.T, *database) func(ctx context.Context, tx *sql.Tx) error {
			return func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
				return err
			}
		}, idempotency.Stats{Handled: 1}},
		"MariaDB's deadlock": {"MariaDB", func(t *testing.T, db *database) func(ctx context.Context, tx *sql.Tx) error {
			deadlock := servertest.NewDeadlock(t, db.DB)
			return func(ctx context.Context, tx *sql.Tx) error { return deadlock(servertest.InTx(ctx, tx)) }
		}, idempotency.Stats{Handled: 1}},
		"innodb_lock_wait_timeout": {"MariaDB", func(t *testing.T, db *database) func(ctx context.Context, tx *sql.Tx) error {
			_, err := db.ExecContext(t.Context(), `INSERT INTO orders (n, id) VALUES (-1, 'locked')`)
			must(t, err)
			return func(ctx context.Context, tx *sql.Tx) error {
				holder, err := db.BeginTx(ctx, nil)
				must(t, err)
				defer func() { must(t, holder.Rollback()) }()
				const lock = `SELECT id FROM orders WHERE n = -1 FOR UPDATE`
				var id string
				must(t, holder.QueryRowContext(ctx, lock).Scan(&id))
				_, err = tx.ExecContext(ctx, `SET innodb_lock_wait_timeout = 1`)
				must(t, err)
				return tx.QueryRowContext(ctx, lock).Scan(&id)
			}
		}, idempotency.Stats{Handled: 1}},
		"MariaDB's duplicate key": {"MariaDB", func(t *testing.T, db *database) func(ctx context.Context, tx *sql.Tx) error {
			return func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO orders (n, id) VALUES (-2, 'twice'), (-2, 'twice')`)
				return err
			}
		}, idempotency.Stats{DeadLettered: 1, FailedAttempts: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t, c.store)
			fails := c.fails(t, db)
			q := newQueue(t, quorumToDead)
			q.publish("m1")
			dedup := newDedup(t, db.inbox, strict)
			runs := 0
			must(t, dedup.Handle(t.Context(), db.DB, next(t, q.consume()), func(ctx context.Context, tx *sql.Tx) error {
				if runs++; runs > 1 {
					return db.placeOrder(ctx, tx, "m1")
				}
				err := fails(ctx, tx)
				if err == nil {
					t.Error("it did not fail")
				}
				return err
			}))
			if got := dedup.Stats(); got != c.want {
				t.Errorf("stats are %+v, want %+v", got, c.want)
			}
			q.wantEmpty()
		})
	}
}
