package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pending"
	"github.com/twoqueue/twoqueue/idempotency/versions"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestAFailedDeliveryIsDeadLetteredByTheBrokerOrComesAgain(t *testing.T) {
	db := newDatabase(t, "SQLite")
	for name, arguments := range map[string]amqp.Table{
		"quorum": quorum, "classic": classic, "quorum with a dead-letter exchange": quorumToDead, "classic with a dead-letter exchange": classicToDead} {
		for _, id := range []string{name, ""} { // one that fails, and one that is refused
			t.Run(fmt.Sprintf("%s %q", name, id), func(t *testing.T) {
				q := newQueue(t, arguments)
				q.publish(id)
				_, toDead := arguments["x-dead-letter-exchange"]
				dedup := newDedup(t, db.inbox, idempotency.Options{
					Attempts: 3, MinDelay: time.Millisecond, MaxDelay: time.Millisecond, DeadLetterExchange: toDead})
				deliveries := q.consume()
				err := dedup.Handle(t.Context(), db.DB, next(t, deliveries), func(context.Context, *sql.Tx) error { return errHandler })
				d := amqp.Delivery{}
				if toDead {
					must(t, err)
					d = q.nextDead()
				} else {
					if !errors.Is(err, idempotency.ErrHandedBack) {
						t.Errorf("got %v", err)
					}
					d = next(t, deliveries)
				}
				if reason, _ := d.Headers["x-first-death-reason"].(string); d.MessageId != id || toDead != (reason == "rejected") {
					t.Errorf("message %q came, because it was %q", d.MessageId, reason)
				}
			})
		}
	}
}

// strict gives up after the first failure that counts.
var strict = idempotency.Options{
	Attempts: 1, MinDelay: time.Millisecond, MaxDelay: time.Millisecond, DeadLetterExchange: true}

func TestACommitWhoseAnswerIsLostIsFoundByTheNextClaim(t *testing.T) {
	db := newDatabase(t, "PostgreSQL")
	valve := servertest.NewValve(t, servertest.Postgres(t).Addr())
	behind, err := url.Parse(db.dsn)
	must(t, err)
	behind.Host = valve.Addr()
	through, err := open(t.Context(), db.name, behind.String())
	must(t, err)
	defer through.Close()
	q := newQueue(t, quorumToDead)
	q.publish("m1")
	dedup := newDedup(t, through.inbox, strict)

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
	must(t, dedup.Handle(t.Context(), through.DB, next(t, q.consume()), func(ctx context.Context, tx *sql.Tx) error {
		if err := through.placeOrder(ctx, tx, "m1"); err != nil {
			return err
		}
		valve.HoldReplies()
		cutter.Go(cutAfterCommit)
		return nil
	}))
	if got, want := dedup.Stats(), (idempotency.Stats{Duplicates: 1}); got != want {
		t.Errorf("stats are %+v, want %+v", got, want)
	}
	db.wantOrders(t, 1)
	q.wantEmpty()
}

func TestACommitThatPostgreSQLRefusesIsTheHandlersFailure(t *testing.T) {
	db := newDatabase(t, "PostgreSQL")
	_, err := db.ExecContext(t.Context(), `CREATE TABLE customers (id text PRIMARY KEY);
		CREATE TABLE invoices (customer text REFERENCES customers DEFERRABLE INITIALLY DEFERRED)`)
	must(t, err)
	q := newQueue(t, quorumToDead)
	q.publish("deferred constraint", "swallowed error")
	deliveries := q.consume()
	dedup := newDedup(t, db.inbox, strict)
	for _, spoil := range []string{`INSERT INTO invoices VALUES ('unknown')`, `INSERT INTO nowhere VALUES (1)`} {
		must(t, dedup.Handle(t.Context(), db.DB, next(t, deliveries), func(ctx context.Context, tx *sql.Tx) error {
			_, _ = tx.ExecContext(ctx, spoil)
			return nil
		}))
	}
	if got, want := dedup.Stats(), (idempotency.Stats{DeadLettered: 2, FailedAttempts: 2}); got != want {
		t.Errorf("stats are %+v, want %+v", got, want)
	}
	db.wantOrders(t, 0)
	q.wantEmpty()
}

// In every kind of queue, with several messages in flight, neither a message that is handed back
// nor a lost consumer changes the order.
func TestHighWaterKeepsTheOrderOfASingleConsumer(t *testing.T) {
	const keys, prefetch = 30, 10
	db := newDatabase(t, "SQLite")
	r, err := db.receiver("HighWater", db.inbox, versions.Options{})
	must(t, err)
	for name, arguments := range map[string]amqp.Table{
		"quorum":            {"x-queue-type": "quorum", "x-single-active-consumer": true},
		"quorum with limit": {"x-queue-type": "quorum", "x-single-active-consumer": true, "x-delivery-limit": 1_000_000},
		"classic":           {"x-queue-type": "classic", "x-single-active-consumer": true},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(t, arguments)
			var want []string
			for key := range keys {
				want = append(want, fmt.Sprintf("%03d", key))
				q.publish(name + ":" + want[key])
			}
			for handled := 0; handled < keys; {
				conn, channel := q.dial()
				must(t, channel.Qos(prefetch, 0, false))
				deliveries, err := channel.Consume(q.name, "", false, false, false, false, nil)
				must(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				for n := 0; handled < keys; n++ {
					d := servertest.Next(t, "a delivery, or the end of the channel", deliveries)
					if d.Acknowledger == nil {
						break
					}
					if n == 4 {
						cancel() // this message and all that follow are handed back
					}
					err := r.handle(ctx, d, db.place)
					if err != nil && !errors.Is(err, idempotency.ErrHandedBack) {
						t.Fatal(err)
					}
					if err == nil {
						handled++
					}
				}
				cancel()
				must(t, conn.Close())
			}
			if got := db.placed(t)[name]; !slices.Equal(got, want) {
				t.Errorf("keys %v took effect, must be %v", got, want)
			}
		})
	}
}

// signallingInbox reports the start of each claim.
type signallingInbox struct {
	driver.Inbox
	claiming chan struct{}
}

func (i signallingInbox) Claim(ctx context.Context, tx bridge.Tx, consumer string, keys []string) ([]string, error) {
	i.claiming <- struct{}{}
	return i.Inbox.Claim(ctx, tx, consumer, keys)
}

// After five seconds the broker requeues the delivery and gives it to another consumer, while the
// first consumer is still handling it.
func TestAnAttemptThatOutlastsTheConsumerTimeoutIsNotRepeated(t *testing.T) {
	broker := servertest.StartRabbitMQ(t, nil)
	must(t, broker.SetConsumerTimeout(t.Context(), 5*time.Second))

	t.Run("an effect", func(t *testing.T) {
		t.Parallel()
		q, db := newQueueOn(t, broker.URL(), quorum), newDatabase(t, "PostgreSQL")
		q.publish("m1")
		effects := newPending(t, db.inbox, pending.Options{})
		runs := 0
		var second error
		err := effects.AtMostOnce(t.Context(), db.DB, next(t, q.consume()), func(context.Context, amqp.Delivery) error {
			runs++
			d := next(t, q.consume()) // once the broker has requeued it
			if !d.Redelivered {
				t.Error("this is no redelivery")
			}
			second = effects.AtMostOnce(t.Context(), db.DB, d, func(context.Context, amqp.Delivery) error {
				runs++
				return nil
			})
			return nil
		})
		notAcked := q.wantLate(err)
		must(t, second)
		if runs != 1 {
			t.Errorf("the effect ran %d times", runs)
		}
		if got, want := effects.Stats(), (idempotency.Stats{Handled: 1, Doubtful: 1, NotAcked: notAcked}); got != want {
			t.Errorf("stats are %+v, want %+v", got, want)
		}
		if counts, err := effects.Count(t.Context(), db.DB); err != nil || len(counts) > 0 {
			t.Errorf("pending are %v, %v", counts, err)
		}
		q.wantEmpty()
	})
	t.Run("a handler", func(t *testing.T) {
		t.Parallel()
		q, db := newQueueOn(t, broker.URL(), quorum), newDatabase(t, "PostgreSQL")
		q.publish("m1")
		inbox := signallingInbox{db.inbox, make(chan struct{}, 2)}
		dedup := newDedup(t, inbox, idempotency.Options{})
		var other sync.WaitGroup
		err := dedup.Handle(t.Context(), db.DB, next(t, q.consume()), func(ctx context.Context, tx *sql.Tx) error {
			servertest.Next(t, "a claim", inbox.claiming)
			d := next(t, q.consume())
			other.Go(func() {
				err := dedup.Handle(t.Context(), db.DB, d, func(context.Context, *sql.Tx) error {
					t.Error("handled twice")
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
			servertest.Next(t, "a claim", inbox.claiming)
			eventually(t, "the second consumer waits for the lock of the first", func() (waiting bool, err error) {
				err = db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
					WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)`).Scan(&waiting)
				return waiting, err
			})
			return db.placeOrder(ctx, tx, "m1")
		})
		q.wantLate(err)
		other.Wait()
		db.wantOrders(t, 1)
		q.wantEmpty()
	})
}

// wantLate checks the Deduplicator's error for a message that the broker requeued meanwhile, and
// returns the number of failed acks. A broker that has only cancelled the consumer silently ignores a
// late ack.
func (q *queue) wantLate(err error) (notAcked uint64) {
	q.t.Helper()
	if servertest.FeaturesOf(q.t, q.url).TimeoutCancels {
		must(q.t, err)
		return 0
	}
	if !errors.Is(err, idempotency.ErrNotAcked) {
		q.t.Errorf("the first got %v", err)
	}
	return 1
}
