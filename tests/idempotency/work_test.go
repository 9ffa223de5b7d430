package idempotency_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
)

// Every message comes twice and is accepted by several consumers, while several workers
// handle what is there; handlers fail and panic at random.
func TestManyWorkersHandleEachStoredMessageOnce(t *testing.T) {
	const messages, consumers, workers = 200, 4, 6
	for name, make := range map[string]func(*testing.T) *database{"PostgreSQL": newPostgres, "MariaDB": newMariaDB} {
		t.Run(name, func(t *testing.T) {
			db := make(t)
			guard, err := idempotency.New(db.inbox, "shop", &idempotency.Options{
				HandBack: true, Attempts: 100, MinDelay: time.Millisecond, MaxDelay: 5 * time.Millisecond, Poll: 5 * time.Millisecond,
				Logger: slog.New(slog.DiscardHandler)})
			must(t, err)
			q := newQueue(t, quorum)
			for m := range messages {
				q.publish(fmt.Sprint("m", m), fmt.Sprint("m", m))
			}
			ctx, stop := context.WithCancel(t.Context())
			var all sync.WaitGroup
			deliveries := q.consume()
			for range consumers {
				all.Go(func() {
					for d := range deliveries {
						if err := guard.Accept(t.Context(), db.DB, d); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for range workers {
				all.Go(func() {
					err := guard.Work(ctx, db.DB, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
						if err := db.placeOrder(ctx, tx, d.MessageId); err != nil {
							return err
						}
						return mishap()
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			eventually(t, "all have come and nothing is pending", func() (bool, error) {
				if s := guard.Stats(); s.Kept+s.Duplicates < 2*messages {
					return false, nil
				}
				counts, err := guard.CountPending(t.Context(), db.DB)
				return len(counts) == 0, err
			})
			stop()
			q.stopConsumers()
			all.Wait()
			db.wantOrders(t, messages)
			if s := guard.Stats(); s.Kept != messages || s.Handled != messages || s.HandedBack != 0 {
				t.Errorf("stats are %+v", s)
			}
			q.wantEmpty()
		})
	}
}
