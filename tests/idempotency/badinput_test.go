package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// slowQueue is a queue of a broker that takes a delivery back after five seconds.
func slowQueue(t *testing.T) *queue {
	t.Helper()
	broker := servertest.StartRabbitMQ(t, nil)
	must(t, broker.SetConsumerTimeout(t.Context(), 5*time.Second))
	return newQueueOn(t, broker.URL(), quorum)
}

// wantLate checks what Guard says of a message that the broker took back meanwhile, and
// returns how many acks have failed. A broker that has only cancelled the consumer
// ignores a late ack without a word.
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

// The broker gives the message to another consumer while its effect is still under way.
func TestAnEffectThatOutlastsTheConsumerTimeoutIsNotRepeated(t *testing.T) {
	q := slowQueue(t)
	db := newPostgres(t)
	q.publish("m1")
	guard := newGuard(t, db.inbox, idempotency.Options{})
	runs := 0
	first, second := q.consume(), make(chan error, 1)
	err := guard.AtMostOnce(t.Context(), db.DB, next(t, first), func(context.Context, amqp.Delivery) error {
		runs++
		d := next(t, q.consume()) // once the broker has taken it from the first
		if !d.Redelivered {
			t.Error("this is no redelivery")
		}
		second <- guard.AtMostOnce(t.Context(), db.DB, d, func(context.Context, amqp.Delivery) error {
			runs++
			return nil
		})
		return nil
	})
	notAcked := q.wantLate(err)
	must(t, <-second)
	if runs != 1 {
		t.Errorf("the effect ran %d times", runs)
	}
	if got, want := guard.Stats(), (idempotency.Stats{Handled: 1, Doubtful: 1, NotAcked: notAcked}); got != want {
		t.Errorf("stats are %+v, want %+v", got, want)
	}
	if counts, err := guard.CountPending(t.Context(), db.DB); err != nil || len(counts) > 0 {
		t.Errorf("pending are %v, %v", counts, err)
	}
	q.wantEmpty()
}

func TestAHandlerThatOutlastsTheConsumerTimeoutIsNotRepeated(t *testing.T) {
	q := slowQueue(t)
	db := newPostgres(t)
	q.publish("m1")
	inbox := signallingInbox{db.inbox, make(chan struct{}, 2)}
	guard := newGuard(t, inbox, idempotency.Options{})
	first := q.consume()
	var other sync.WaitGroup
	err := guard.Handle(t.Context(), db.DB, next(t, first), func(ctx context.Context, tx *sql.Tx) error {
		<-inbox.claiming
		d := next(t, q.consume())
		other.Go(func() {
			err := guard.Handle(t.Context(), db.DB, d, func(context.Context, *sql.Tx) error {
				t.Error("handled twice")
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		db.secondWaits(t, inbox.claiming)
		return db.placeOrder(ctx, tx, "m1")
	})
	q.wantLate(err)
	other.Wait()
	db.wantOrders(t, 1)
	q.wantEmpty()
}

func TestADatabaseThatVanishesBetweenEffectAndDoneLeavesADoubt(t *testing.T) {
	db := newPostgres(t)
	valve := servertest.NewValve(t, servertest.Postgres(t).Addr())
	through, err := open(t.Context(), db.driver, behind(t, db.dsn, valve))
	must(t, err)
	defer through.Close()
	q := newQueue(t, quorum)
	q.publish("m1")
	guard := newGuard(t, through.inbox, idempotency.Options{Hold: 6 * time.Second, MaxDelay: 200 * time.Millisecond})
	deliveries := q.consume()
	runs := 0
	effect := func(context.Context, amqp.Delivery) error {
		runs++
		valve.Vanish()
		return nil
	}
	err = guard.AtMostOnce(t.Context(), through.DB, next(t, deliveries), effect)
	if !errors.Is(err, idempotency.ErrHandedBack) {
		t.Errorf("got %v", err)
	}
	valve.Release()
	must(t, guard.AtMostOnce(t.Context(), through.DB, next(t, deliveries), effect))
	if runs != 1 {
		t.Errorf("the effect ran %d times", runs)
	}
	eventually(t, "it is doubtful", func() (bool, error) {
		found, err := guard.Pending(t.Context(), through.DB, idempotency.Doubtful, "", 10)
		return len(found) == 1 && found[0].Stored && found[0].Key == "m1", err
	})
	q.wantEmpty()
}

// Keys that are purged while copies of them come: what is too old is refused, whether
// its claim is still there or not.
func TestWhatIsBeingPurgedIsNotHandledAsNew(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		const messages = 300
		day := 24 * time.Hour
		opts := idempotency.Options{Retention: 10 * day, DeadLetterExchange: true}
		guard := newGuard(t, db.inbox, opts)
		keys := make([]string, messages)
		old := map[string]string{"pgx": `now() - interval '20 days'`, "sqlite": `unixepoch() - 20 * 86400`}[db.driver]
		for n := range keys {
			ms := time.Now().Add(-20 * day).UnixMilli()
			keys[n] = fmt.Sprintf("%08x-%04x-7000-8000-%012x", ms>>16, ms&0xffff, n)
			_, err := db.ExecContext(t.Context(), `INSERT INTO bridge_inbox (consumer, key, claimed_at) VALUES ('shop', '`+keys[n]+`', `+old+`)`)
			must(t, err)
		}
		q := newQueue(t, quorumToDead)
		q.publish(keys...)
		deliveries := q.consume()
		var purge sync.WaitGroup
		for n := range keys {
			if n == messages/2 {
				purge.Go(func() {
					if _, err := guard.Purge(t.Context(), db.DB); err != nil {
						t.Error(err)
					}
				})
			}
			err := guard.Handle(t.Context(), db.DB, next(t, deliveries), func(context.Context, *sql.Tx) error {
				t.Errorf("%s is handled as new", keys[n])
				return nil
			})
			must(t, err)
		}
		purge.Wait()
		stats := guard.Stats()
		if stats.Duplicates < messages/2 || stats.Duplicates+stats.DeadLettered != messages || stats.Purged != messages {
			t.Errorf("stats are %+v", stats)
		}
		q.wantEmpty()
	})
}
