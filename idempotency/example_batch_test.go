package idempotency_test

import (
	"context"
	"database/sql"
	"log"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
)

// Up to 100 messages share a transaction. If one of them cannot be handled, it is retried alone.
func ExampleNewBatchConsumer() {
	var (
		ctx    context.Context
		db     *sql.DB
		broker *bridge.Broker
		guard  *idempotency.Guard
	)
	consumer, err := idempotency.NewBatchConsumer(broker, "readings", 100, func(ctx context.Context, ds []amqp.Delivery) error {
		return guard.HandleBatch(ctx, db, ds, func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
			for _, d := range fresh {
				if _, err := tx.ExecContext(ctx, `INSERT INTO readings (body) VALUES ($1)`, string(d.Body)); err != nil {
					return err
				}
			}
			return nil
		})
	}, &idempotency.ConsumerOptions{Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	if err := consumer.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
