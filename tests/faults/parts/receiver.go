package parts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
)

const (
	// ReceiverPrefetch is the most messages of one queue that a receiver holds.
	ReceiverPrefetch = 40
	handlers         = 4 // at the same time, for each queue
)

// receive stores every delivery in arrivals and, through a Deduplicator, every message in effects.
// Neither table has a unique index, so that duplicates show.
func receive(ctx context.Context, b Brief) error {
	db, database, err := OpenDatabase(b.Database)
	if err != nil {
		return err
	}
	defer db.Close()
	var inbox driver.Inbox
	if err := retry(ctx, "open inbox", func() error {
		inbox, err = database.inbox(ctx, db)
		return err
	}); err != nil {
		return err
	}
	broker, err := bridge.NewBroker(b.AMQP+"?heartbeat=4", &bridge.BrokerOptions{Logger: logger(), DialTimeout: dialTimeout})
	if err != nil {
		return err
	}
	defer broker.Close()
	var queues sync.WaitGroup
	for _, queue := range b.Queues {
		dedup, err := idempotency.New(inbox, queue, &idempotency.Options{
			MinDelay: 20 * time.Millisecond, MaxDelay: 500 * time.Millisecond, Hold: 30 * time.Second,
			Attempts: 1000, HandBack: true, Logger: logger(),
		})
		if err != nil {
			return err
		}
		r := &receiver{db: db, database: database, dedup: dedup, queue: queue}
		opts := &idempotency.ConsumerOptions{Workers: handlers, Prefetch: ReceiverPrefetch, Drain: 5 * time.Second, Logger: logger()}
		if slices.Contains(b.InOrder, queue) {
			opts.Workers = 1
		}
		consumer, err := idempotency.NewConsumer(broker, queue, r.handle, opts)
		if err != nil {
			return err
		}
		queues.Go(func() {
			_ = retry(ctx, "consume "+queue, func() error { return consumer.Run(ctx) })
		})
	}
	queues.Wait()
	return nil
}

// A receiver handles the messages of one queue.
type receiver struct {
	db       *sql.DB
	database Database
	dedup    *idempotency.Deduplicator
	queue    string
}

func (r *receiver) handle(ctx context.Context, d amqp.Delivery) error {
	// A delivery that could not be stored is not acked, and is delivered again.
	if err := retry(ctx, "store arrival", func() error { return r.arrived(ctx, d) }); err != nil {
		return err
	}
	note("%s arrived at %s", d.MessageId, r.queue)
	work := func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, r.database.Text(`INSERT INTO effects (id, queue) VALUES (?, ?)`), d.MessageId, r.queue)
		if err == nil && rand.IntN(50) == 0 {
			err = errors.New("the handler fails after its work")
		}
		return err
	}
	var err error
	if rand.IntN(2) == 0 {
		err = r.dedup.Handle(ctx, r.db, d, work)
	} else {
		err = r.dedup.HandleWithClaim(ctx, d, func(ctx context.Context, claim idempotency.Claim) error { return r.inTx(ctx, claim, work) })
	}
	if err != nil {
		note("%s handled: %v", d.MessageId, err)
	} else {
		note("%s handled", d.MessageId)
	}
	return err
}

// inTx does the work in its own transaction, if the message is fresh.
func (r *receiver) inTx(ctx context.Context, claim idempotency.Claim, work func(context.Context, *sql.Tx) error) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if fresh, err := claim(ctx, bridge.SQL(tx)); err != nil || !fresh {
		return err
	}
	if err := work(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (r *receiver) arrived(ctx context.Context, d amqp.Delivery) error {
	_, err := r.db.ExecContext(ctx, r.database.Text(`INSERT INTO arrivals (id, queue, target, intact) VALUES (?, ?, ?, ?)`),
		d.MessageId, r.queue, d.Exchange+"/"+d.RoutingKey, intact(d))
	if err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	return nil
}
