package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pgxreceiver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// runBatches runs a batch consumer of q with two workers until fn returns, and checks that it
// drains.
func (q *queue) runBatches(batch int, key func(d amqp.Delivery) string, handle func(ctx context.Context, ds []amqp.Delivery) error, fn func()) {
	q.t.Helper()
	broker, err := bridge.NewBroker(q.url, nil)
	must(q.t, err)
	defer broker.Close()
	consumer, err := idempotency.NewBatchConsumer(broker, q.name, batch, handle,
		&idempotency.ConsumerOptions{Workers: 2, Key: key, Logger: slog.New(slog.NewTextHandler(testLog{q.t}, nil))})
	must(q.t, err)
	ctx, stop := context.WithCancel(q.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	fn()
	stop()
	must(q.t, servertest.Next(q.t, "the consumer ends", ended))
}

// Some attempts terminate their own database session in the handler. No message may be lost or
// handled twice. None may be dead-lettered, although one counted failure would suffice. A message's
// session is terminated once: a second loss counts if others were handled in between.
func TestABatchConsumerHandlesEachMessageOnceInBatches(t *testing.T) {
	t.Parallel()
	const messages, copies, batch, terminated = 300, 20, 50, 3
	for _, library := range []string{"database/sql", "pgx"} {
		t.Run(library, func(t *testing.T) {
			db := newDatabase(t, "PostgreSQL")
			pool, err := db.pool(t.Context())
			must(t, err)
			q := newQueue(t, quorum)
			ids := names("m", messages)
			q.publish(append(ids, ids[:copies]...)...)
			dedup := newDedup(t, db.inbox, idempotency.Options{Attempts: 1, DeadLetterExchange: true})
			var largest, calls, endings atomic.Int64
			var ended sync.Map // messages whose session was terminated
			effect := func(ctx context.Context, tx bridge.Tx, fresh []amqp.Delivery) error {
				calls.Add(1)
				for n := int64(len(fresh)); n > largest.Load(); {
					largest.Store(n)
				}
				if err := eachOf(ctx, tx, fresh, db.place); err != nil || endings.Load() >= terminated {
					return err
				}
				for _, d := range fresh {
					if _, again := ended.LoadOrStore(d.MessageId, true); again {
						return nil
					}
				}
				endings.Add(1)
				_, err := tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
				return err
			}
			q.runBatches(batch, nil, func(ctx context.Context, ds []amqp.Delivery) error {
				if library == "pgx" {
					return pgxreceiver.HandleBatch(ctx, dedup, pool, pgx.TxOptions{}, ds, func(ctx context.Context, tx pgx.Tx, fresh []amqp.Delivery) error {
						return effect(ctx, pgxbridge.Tx(tx), fresh)
					})
				}
				return dedup.HandleBatch(ctx, db.DB, ds, func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
					return effect(ctx, bridge.SQL(tx), fresh)
				})
			}, func() {
				eventually(t, "all are acked", func() (bool, error) {
					s := dedup.Stats()
					return s.Handled == messages && s.Duplicates == copies, nil
				})
			})
			// RabbitMQ 3.10 loses acks of a quorum queue that it has received before the channel
			// ends, if dozens came just before.
			q.redeliver(func(d amqp.Delivery) error { return inserting(dedup, db)(t.Context(), d) })
			db.wantOrders(t, messages)
			q.wantEmpty()
			if largest.Load() > batch || calls.Load() > messages/2 {
				t.Errorf("%d batches, the largest of %d messages", calls.Load(), largest.Load())
			}
			if s := dedup.Stats(); s.DeadLettered > 0 || s.FailedAttempts > 0 {
				t.Errorf("stats are %+v", s)
			}
		})
	}
}

// The rules of Handle hold in a transaction of pgx.
func TestAMessageIsHandledOnceInATransactionOfPgx(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "PostgreSQL")
	pool, err := db.pool(t.Context())
	must(t, err)
	q := newQueue(t, quorum)
	handled := 0
	for name, c := range map[string]struct {
		fail func(ctx context.Context, tx pgx.Tx) error // in the first attempt, after the effect
		want idempotency.Stats
	}{
		"at once": {func(context.Context, pgx.Tx) error { return nil }, idempotency.Stats{Handled: 1}},
		"after an error": {func(context.Context, pgx.Tx) error { return errors.New("handler") },
			idempotency.Stats{Handled: 1, FailedAttempts: 1}},
		"after a panic": {func(context.Context, pgx.Tx) error { panic("handler") },
			idempotency.Stats{Handled: 1, FailedAttempts: 1}},
		"after a statement whose error was ignored": {func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, `SELECT 1 / 0`)
			return nil
		}, idempotency.Stats{Handled: 1, FailedAttempts: 1}},
		"after rows that were left open": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, `SELECT generate_series(1, 100000)`)
			return err
		}, idempotency.Stats{Handled: 1, FailedAttempts: 1}},
		"after an error with rows left open": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, `SELECT generate_series(1, 100000)`)
			return errors.Join(err, errHandler)
		}, idempotency.Stats{Handled: 1, FailedAttempts: 1}},
		"after a rollback of the handler's": {func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
			idempotency.Stats{Handled: 1, FailedAttempts: 1}},
		"after a commit of the handler's": {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
			idempotency.Stats{Duplicates: 1, FailedAttempts: 1}},
		"after its backend was terminated": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
			return err
		}, idempotency.Stats{Handled: 1}},
		"after its backend was terminated, which was ignored": {func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
			return nil
		}, idempotency.Stats{Handled: 1}},
		"after a serialization failure": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `DO $$ BEGIN RAISE serialization_failure; END $$`)
			return err
		}, idempotency.Stats{Handled: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			q.publish(name, name)
			dedup := newDedup(t, db.inbox, idempotency.Options{Attempts: 2, DeadLetterExchange: true})
			attempts := 0
			q.redeliver(func(d amqp.Delivery) error {
				return pgxreceiver.Handle(t.Context(), dedup, pool, pgx.TxOptions{}, d, func(ctx context.Context, tx pgx.Tx) error {
					if err := db.place(ctx, pgxbridge.Tx(tx), d.MessageId); err != nil {
						return err
					}
					if attempts++; attempts == 1 {
						return c.fail(ctx, tx)
					}
					return nil
				})
			})
			handled++
			db.wantOrders(t, handled)
			c.want.Duplicates++
			if got := dedup.Stats(); got != c.want {
				t.Errorf("stats are %+v, must be %+v", got, c.want)
			}
			if used := pool.Stat().AcquiredConns(); used > 0 {
				t.Errorf("%d connections are not given back", used)
			}
		})
	}
	q.wantEmpty()
}

// A failing message in a batch holds up its own key while it is retried, and not the keys of the
// batch's other messages.
func TestAPoisonInABatchHoldsUpNoOtherKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "PostgreSQL")
	q := newQueue(t, quorum)
	dedup := newDedup(t, db.inbox, idempotency.Options{MinDelay: time.Hour, MaxDelay: time.Hour, Hold: 24 * time.Hour})
	running, open := make(chan struct{}, 2), make(chan struct{})
	key := func(d amqp.Delivery) string {
		key, _, _ := strings.Cut(d.MessageId, ":")
		return key
	}
	q.runBatches(10, key, func(ctx context.Context, ds []amqp.Delivery) error {
		return dedup.HandleBatch(ctx, db.DB, ds, func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
			for _, d := range fresh {
				switch {
				case d.MessageId == "poison:1":
					return errHandler
				case strings.HasPrefix(d.MessageId, "gate"):
					running <- struct{}{}
					<-open
				}
			}
			return eachOf(ctx, bridge.SQL(tx), fresh, db.place)
		})
	}, func() {
		for _, gate := range []string{"gate1:1", "gate2:1"} { // one for each worker, so that the next messages become one batch
			q.publish(gate)
			servertest.Next(t, gate+" is handled", running)
		}
		q.publish("a:1", "poison:1", "a:2")
		q.ready(0)
		close(open)
		settled(t, dedup, 4) // all except the failing message, which is retried in an hour
	})
	db.wantOrders(t, 4)
}
