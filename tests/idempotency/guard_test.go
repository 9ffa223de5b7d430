package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

var errHandler = errors.New("no such customer")

// A signallingInbox tells when a claim starts.
type signallingInbox struct {
	driver.Inbox
	claiming chan struct{}
}

func (i signallingInbox) Claim(ctx context.Context, tx bridge.Tx, consumer, key string) (bool, error) {
	i.claiming <- struct{}{}
	return i.Inbox.Claim(ctx, tx, consumer, key)
}

// secondWaits returns once the second of two consumers is in its claim; on
// PostgreSQL the server itself says that it waits for the first one's lock.
func (db *database) secondWaits(t *testing.T, claiming <-chan struct{}) {
	t.Helper()
	select {
	case <-claiming:
	case <-time.After(patience):
		t.Fatal("the second consumer does not claim")
	}
	if db.driver != "pgx" {
		return
	}
	eventually(t, "the second consumer waits", func() (bool, error) {
		var waiting bool
		err := db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)`).Scan(&waiting)
		return waiting, err
	})
}

func TestOfTwoConsumersOfOneKeyTheSecondWaits(t *testing.T) {
	for name, c := range map[string]struct {
		firstFails bool
		first      idempotency.Stats
		second     idempotency.Stats
	}{
		"and then skips": {
			first:  idempotency.Stats{Handled: 1},
			second: idempotency.Stats{Duplicates: 1},
		},
		"and takes over from a first one that rolled back": {
			firstFails: true,
			first:      idempotency.Stats{DeadLettered: 1, FailedAttempts: 1},
			second:     idempotency.Stats{Handled: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEachDatabase(t, func(t *testing.T, db *database) {
				q := newQueue(t, quorumToDead)
				q.publish("m1", "m1")
				opts := idempotency.Options{Attempts: 1, DeadLetterExchange: true}
				inbox := signallingInbox{db.inbox, make(chan struct{}, 2)}
				first, second := newGuard(t, inbox, opts), newGuard(t, inbox, opts)
				deliveries := q.consume()
				a, b := next(t, deliveries), next(t, deliveries)

				running, finish := make(chan struct{}), make(chan struct{})
				var consumers sync.WaitGroup
				defer consumers.Wait()
				consumers.Go(func() {
					err := first.Handle(t.Context(), db.DB, a, func(ctx context.Context, tx *sql.Tx) error {
						defer func() { <-finish }()
						defer close(running)
						if c.firstFails {
							return errHandler
						}
						return db.placeOrder(ctx, tx, "m1")
					})
					if err != nil {
						t.Error(err)
					}
				})
				<-running
				<-inbox.claiming
				consumers.Go(func() {
					err := second.Handle(t.Context(), db.DB, b, func(ctx context.Context, tx *sql.Tx) error {
						select {
						case <-finish:
						default:
							t.Error("the second handler runs while the first does")
						}
						return db.placeOrder(ctx, tx, "m1")
					})
					if err != nil {
						t.Error(err)
					}
				})
				db.secondWaits(t, inbox.claiming)
				close(finish)
				consumers.Wait()

				if got := first.Stats(); got != c.first {
					t.Errorf("stats of the first are %+v, want %+v", got, c.first)
				}
				if got := second.Stats(); got != c.second {
					t.Errorf("stats of the second are %+v, want %+v", got, c.second)
				}
				db.wantOrders(t, 1)
				q.wantEmpty()
			})
		})
	}
}

func TestAttemptsAreBoundedThenTheBrokerDeadLettersTheMessage(t *testing.T) {
	for name, arguments := range map[string]amqp.Table{"quorum": quorumToDead, "classic": classicToDead} {
		t.Run(name, func(t *testing.T) {
			onEachDatabase(t, func(t *testing.T, db *database) {
				q := newQueue(t, arguments)
				q.publish("m1", "m2", "m3")
				guard := newGuard(t, db.inbox, idempotency.Options{
					Attempts: 3, MinDelay: time.Millisecond, MaxDelay: time.Millisecond, DeadLetterExchange: true})
				deliveries := q.consume()
				runs := map[string]int{}
				for range 3 {
					d := next(t, deliveries)
					err := guard.Handle(t.Context(), db.DB, d, func(ctx context.Context, tx *sql.Tx) error {
						runs[d.MessageId]++
						if err := db.placeOrder(ctx, tx, d.MessageId); err != nil {
							return err
						}
						switch d.MessageId {
						case "m1":
							return errHandler
						case "m2":
							panic("out of range")
						}
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
				if runs["m1"] != 3 || runs["m2"] != 3 || runs["m3"] != 1 {
					t.Errorf("runs are %v", runs)
				}
				for _, want := range []string{"m1", "m2"} {
					d := q.nextDead()
					if d.MessageId != want || d.Headers["x-first-death-reason"] != "rejected" {
						t.Errorf("message %q is dead because it was %v, want %s rejected",
							d.MessageId, d.Headers["x-first-death-reason"], want)
					}
				}
				if got, want := guard.Stats(), (idempotency.Stats{Handled: 1, DeadLettered: 2, FailedAttempts: 6}); got != want {
					t.Errorf("stats are %+v, want %+v", got, want)
				}
				db.wantOrders(t, 1)
				q.wantEmpty()
			})
		})
	}
}

func TestAMessageThatFailsIsNotLostOnAQueueWithoutDeadLetterExchange(t *testing.T) {
	db := newSQLite(t)
	for name, arguments := range map[string]amqp.Table{"quorum": quorum, "classic": classic} {
		for _, id := range []string{name, ""} {
			t.Run(fmt.Sprintf("%s %q", name, id), func(t *testing.T) {
				q := newQueue(t, arguments)
				q.publish(id)
				guard := newGuard(t, db.inbox, idempotency.Options{
					Attempts: 1, MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
				deliveries := q.consume()
				for range 3 {
					err := guard.Handle(t.Context(), db.DB, next(t, deliveries), func(context.Context, *sql.Tx) error {
						return errHandler
					})
					if !errors.Is(err, idempotency.ErrHandedBack) {
						t.Errorf("got %v", err)
					}
				}
				if d := next(t, deliveries); d.MessageId != id {
					t.Errorf("got message %q", d.MessageId)
				}
			})
		}
	}
}

func TestAnAckOnAClosedChannelSaysSoAndTheRedeliveryIsSkipped(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		q := newQueue(t, quorum)
		q.publish("m1")
		guard := newGuard(t, db.inbox, idempotency.Options{})
		conn, channel := q.dial()
		d := next(t, consume(t, channel, q.name))
		err := guard.Handle(t.Context(), db.DB, d, func(ctx context.Context, tx *sql.Tx) error {
			return errors.Join(db.placeOrder(ctx, tx, d.MessageId), conn.Close())
		})
		if !errors.Is(err, idempotency.ErrNotAcked) || !errors.Is(err, amqp.ErrClosed) {
			t.Errorf("got %v", err)
		}
		db.wantOrders(t, 1)
		if err := guard.Handle(t.Context(), db.DB, next(t, q.consume()), func(context.Context, *sql.Tx) error {
			t.Error("handled twice")
			return nil
		}); err != nil {
			t.Error(err)
		}
		if got, want := guard.Stats(), (idempotency.Stats{Handled: 1, Duplicates: 1, NotAcked: 1}); got != want {
			t.Errorf("stats are %+v, want %+v", got, want)
		}
		q.wantEmpty()
	})
}

// strict gives up after the first failure that counts.
var strict = idempotency.Options{
	Attempts: 1, MinDelay: time.Millisecond, MaxDelay: time.Millisecond, DeadLetterExchange: true}

func TestAKilledDatabaseConnectionDoesNotCountAgainstTheMessage(t *testing.T) {
	db := newPostgres(t)
	q := newQueue(t, quorumToDead)
	q.publish("m1")
	guard := newGuard(t, db.inbox, strict)
	runs := 0
	err := guard.Handle(t.Context(), db.DB, next(t, q.consume()), func(ctx context.Context, tx *sql.Tx) error {
		if runs++; runs < 3 {
			var pid int
			if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
				t.Error(err)
			}
			if _, err := db.ExecContext(ctx, `SELECT pg_terminate_backend($1, 10000)`, pid); err != nil {
				t.Error(err)
			}
		}
		return db.placeOrder(ctx, tx, "m1")
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := guard.Stats(), (idempotency.Stats{Handled: 1}); got != want {
		t.Errorf("stats are %+v, want %+v", got, want)
	}
	db.wantOrders(t, 1)
	q.wantEmpty()
}

func TestACommitWhoseAnswerIsLostIsFoundByTheNextClaim(t *testing.T) {
	db := newPostgres(t)
	valve := servertest.NewValve(t, servertest.Postgres(t).Addr())
	through, err := open(t.Context(), db.driver, behind(t, db.dsn, valve))
	if err != nil {
		t.Fatal(err)
	}
	defer through.Close()
	q := newQueue(t, quorumToDead)
	q.publish("m1")
	guard := newGuard(t, through.inbox, strict)
	d := next(t, q.consume())

	cutAfterCommit := sync.OnceFunc(func() {
		eventually(t, "the order is committed", func() (bool, error) {
			var n int
			err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM orders`).Scan(&n)
			return n == 1, err
		})
		valve.Cut()
		valve.Release()
	})
	var cutter sync.WaitGroup
	defer cutter.Wait()
	err = guard.Handle(t.Context(), through.DB, d, func(ctx context.Context, tx *sql.Tx) error {
		if err := through.placeOrder(ctx, tx, "m1"); err != nil {
			return err
		}
		valve.HoldReplies()
		cutter.Go(cutAfterCommit)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := guard.Stats(), (idempotency.Stats{Duplicates: 1}); got != want {
		t.Errorf("stats are %+v, want %+v", got, want)
	}
	db.wantOrders(t, 1)
	q.wantEmpty()
}

// behind returns the DSN through the valve.
func behind(t *testing.T, dsn string, valve *servertest.Valve) string {
	t.Helper()
	address, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	address.Host = valve.Addr()
	return address.String()
}

func TestACommitThatPostgreSQLRefusesIsTheHandlersFailure(t *testing.T) {
	for name, spoil := range map[string]string{
		"deferred constraint": `INSERT INTO invoices VALUES ('nobody')`,
		"swallowed error":     `INSERT INTO nowhere VALUES (1)`,
	} {
		t.Run(name, func(t *testing.T) {
			db := newPostgres(t)
			_, err := db.ExecContext(t.Context(), `CREATE TABLE customers (id text PRIMARY KEY);
				CREATE TABLE invoices (customer text REFERENCES customers DEFERRABLE INITIALLY DEFERRED)`)
			if err != nil {
				t.Fatal(err)
			}
			q := newQueue(t, quorumToDead)
			q.publish("m1")
			guard := newGuard(t, db.inbox, strict)
			err = guard.Handle(t.Context(), db.DB, next(t, q.consume()), func(ctx context.Context, tx *sql.Tx) error {
				_, _ = tx.ExecContext(ctx, spoil)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := guard.Stats(), (idempotency.Stats{DeadLettered: 1, FailedAttempts: 1}); got != want {
				t.Errorf("stats are %+v, want %+v", got, want)
			}
			if d := q.nextDead(); d.MessageId != "m1" {
				t.Errorf("message %q is in the dead queue", d.MessageId)
			}
			db.wantOrders(t, 0)
		})
	}
}

func TestShutdownInTheHandlerHandsTheMessageToAnotherConsumer(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		q := newQueue(t, quorumToDead)
		q.publish("m1")
		deliveries := q.consume()
		ctx, cancel := context.WithCancel(t.Context())
		stopping := newGuard(t, db.inbox, strict)
		err := stopping.Handle(ctx, db.DB, next(t, deliveries), func(ctx context.Context, tx *sql.Tx) error {
			err := db.placeOrder(ctx, tx, "m1")
			cancel()
			return err
		})
		if !errors.Is(err, idempotency.ErrHandedBack) || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		db.wantOrders(t, 0)

		other := newGuard(t, db.inbox, strict)
		err = other.Handle(t.Context(), db.DB, next(t, deliveries), func(ctx context.Context, tx *sql.Tx) error {
			return db.placeOrder(ctx, tx, "m1")
		})
		if err != nil {
			t.Error(err)
		}
		db.wantOrders(t, 1)
		q.wantEmpty()
	})
}
