package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/idempotency"
)

// Every message is in the queue twice, handlers fail and panic at random, and
// consumers lose their connections with acks under way.
func TestEveryMessageIsHandledOnceWhateverFails(t *testing.T) {
	const (
		messages = 200
		workers  = 8
		lives    = 4 // how often the consumers are connected
	)
	onEachDatabase(t, func(t *testing.T, db *database) {
		q := newQueue(t, quorumToDead)
		ids := make([]string, 0, 2*messages)
		for m := range messages {
			ids = append(ids, fmt.Sprint("m", m), fmt.Sprint("m", m))
		}
		rand.Shuffle(len(ids), func(a, b int) { ids[a], ids[b] = ids[b], ids[a] })
		q.publish(ids...)

		guard, err := idempotency.New(db.inbox, "shop", &idempotency.Options{
			Attempts: 100, MinDelay: time.Millisecond, MaxDelay: 5 * time.Millisecond, DeadLetterExchange: true,
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		handle := func(id string) func(context.Context, *sql.Tx) error {
			return func(ctx context.Context, tx *sql.Tx) error {
				if err := db.placeOrder(ctx, tx, id); err != nil {
					return err
				}
				return mishap()
			}
		}
		ended := func() uint64 { s := guard.Stats(); return s.Handled + s.Duplicates }
		for life := range lives {
			deliveries := q.consume()
			var consumers sync.WaitGroup
			for range workers {
				consumers.Go(func() {
					for d := range deliveries {
						err := guard.Handle(t.Context(), db.DB, d, handle(d.MessageId))
						if err != nil && !errors.Is(err, idempotency.ErrNotAcked) {
							t.Error(err)
						}
					}
				})
			}
			enough := uint64(2 * messages * (life + 1) / (lives + 1))
			eventually(t, "enough is done", func() (bool, error) { return ended() >= enough, nil })
			q.stopConsumers()
			consumers.Wait()
		}
		for { // the rest, among it what was acked in vain
			d, ok, err := q.Get(q.name, false)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if err := guard.Handle(t.Context(), db.DB, d, handle(d.MessageId)); err != nil {
				t.Error(err)
			}
		}
		db.wantOrders(t, messages)
		if got := guard.Stats(); got.HandedBack+got.DeadLettered != 0 || got.Handled != messages {
			t.Errorf("stats are %+v", got)
		}
		q.wantEmpty()
	})
}
