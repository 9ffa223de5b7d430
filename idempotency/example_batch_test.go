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

// Up to 100 messages share a transaction, and one statement inserts their rows. If one of them
// cannot be handled, it is retried alone.
func ExampleNewBatchConsumer() {
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
	consumer, err := idempotency.NewBatchConsumer(broker, "emails", 100, func(ctx context.Context, ds []amqp.Delivery) error {
		return dedup.HandleBatch(ctx, db, ds, func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
			var bodies []string
			for _, d := range fresh {
				bodies = append(bodies, string(d.Body))
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO emails (body) SELECT unnest($1::text[])`, bodies)
			return err
		})
	}, &idempotency.ConsumerOptions{Workers: 2})
	if err != nil {
		log.Fatal(err)
	}
	if err := consumer.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
