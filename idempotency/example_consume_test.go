package idempotency_test

import (
	"context"
	"database/sql"
	"log"
	"os"
	"os/signal"
	"syscall"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
)

// A complete receiver: it stores each e-mail of a queue once, until SIGTERM stops it.
func Example_consume() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	db, err := sql.Open("pgx", "postgres://mailer:secret@localhost/mailer")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if err := migrate.Inbox(ctx, db, migrate.PostgreSQL); err != nil {
		log.Fatal(err)
	}
	inbox, err := postgres.OpenInbox(ctx, db)
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
		return dedup.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO emails (body) VALUES ($1)`, string(d.Body))
			return err
		})
	}, &idempotency.ConsumerOptions{Workers: 20})
	if err != nil {
		log.Fatal(err)
	}
	if err := consumer.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
