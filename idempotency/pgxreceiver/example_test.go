package pgxreceiver_test

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pgxreceiver"
)

// A receiver that stores each e-mail once, in a transaction of pgx.
func ExampleHandle() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	pool, err := pgxpool.New(ctx, "postgres://mailer:secret@localhost/mailer")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	if err := migrate.Inbox(ctx, db, migrate.PostgreSQL); err != nil {
		log.Fatal(err)
	}
	inbox, err := pgxbridge.OpenInbox(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	broker, err := bridge.Dial(ctx, "amqp://mailer:secret@localhost/", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	queues, err := idempotency.DeclareReceiver(ctx, broker, "emails", nil)
	if err != nil {
		log.Fatal(err)
	}
	dedup, err := idempotency.New(inbox, "mailer", &idempotency.Options{Queues: queues})
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := idempotency.NewConsumer(broker, "emails", func(ctx context.Context, d amqp.Delivery) error {
		return pgxreceiver.Handle(ctx, dedup, pool, pgx.TxOptions{}, d, func(ctx context.Context, tx pgx.Tx) error {
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
