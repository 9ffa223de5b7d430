package pgxreceiver_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pgxreceiver"
)

// A receiver that stores each e-mail once, in a transaction of pgx.
func ExampleHandle() {
	var (
		ctx    context.Context
		pool   *pgxpool.Pool
		broker *bridge.Broker
	)
	inbox, err := pgxbridge.OpenInbox(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	guard, err := idempotency.New(inbox, "mailer", &idempotency.Options{DeadLetter: idempotency.DeadQueue(broker, "emails.dead")})
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := idempotency.NewConsumer(broker, "emails", func(ctx context.Context, d amqp.Delivery) error {
		return pgxreceiver.Handle(ctx, guard, pool, pgx.TxOptions{}, d, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO emails (body) VALUES ($1)`, string(d.Body))
			return err
		})
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := consumer.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
