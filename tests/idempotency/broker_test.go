package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/versions"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestAFailedDeliveryIsDeadLetteredByTheBrokerOrComesAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "SQLite")
	for name, arguments := range map[string]amqp.Table{
		"quorum": quorum, "classic": classic, "quorum with a dead-letter exchange": quorumToDead, "classic with a dead-letter exchange": classicToDead} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(t, arguments)
			_, toDead := arguments["x-dead-letter-exchange"]
			dedup := newDedup(t, db.inbox, idempotency.Options{
				Attempts: 3, MinDelay: time.Millisecond, MaxDelay: time.Millisecond, DeadLetterExchange: toDead})
			deliveries := q.consume()
			for _, id := range []string{name, ""} { // one that fails, and one that is refused
				q.publish(id)
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
					must(t, d.Ack(false))
				}
				if reason, _ := d.Headers["x-first-death-reason"].(string); d.MessageId != id || toDead != (reason == "rejected") {
					t.Errorf("message %q came, because it was %q", d.MessageId, reason)
				}
			}
		})
	}
}

// strict gives up after the first failure that counts.
var strict = idempotency.Options{
	Attempts: 1, MinDelay: time.Millisecond, MaxDelay: time.Millisecond, DeadLetterExchange: true}

func TestACommitWhoseAnswerIsLostIsFoundByTheNextClaim(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "PostgreSQL")
	valve, through := db.through(t)
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

// In every kind of queue, with several messages in flight, neither a message that is handed back
// nor a lost consumer changes the order.
func TestHighWaterKeepsTheOrderOfASingleConsumer(t *testing.T) {
	t.Parallel()
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
