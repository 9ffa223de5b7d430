// Command service bills each order of a queue once: in one transaction it writes an invoice and
// replies. It is a complete receiver, as a user writes one; a verifier runs beside it.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/cenkalti/backoff/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // driver
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	db := must(sql.Open("pgx", os.Getenv("DATABASE_URL")))
	db.SetMaxIdleConns(20) // one for each worker
	broker := must(bridge.NewBroker(os.Getenv("AMQP_URL"), nil))
	sends := must(sender.New(must(postgres.Open(ctx, db)), broker, nil))
	queues := must(idempotency.DeclareReceiver(ctx, broker, "orders", nil))
	dedup := must(idempotency.New(must(postgres.OpenInbox(ctx, db)), "billing", &idempotency.Options{Queues: queues}))
	consumer := must(idempotency.NewConsumer(broker, "orders", func(ctx context.Context, d amqp.Delivery) error {
		return dedup.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error { return bill(ctx, tx, sends, d) })
	}, &idempotency.ConsumerOptions{Workers: 20}))
	if err := consumer.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

func bill(ctx context.Context, tx *sql.Tx, replies *sender.Sender, d amqp.Delivery) error {
	var order struct{ Number, Cents int }
	if err := json.Unmarshal(d.Body, &order); err != nil {
		return backoff.Permanent(err) // to the dead queue at once
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO invoices (number, cents) VALUES ($1, $2)`, order.Number, order.Cents); err != nil {
		return err // rolls back, and the order comes again
	}
	reply, err := idempotency.Reply(d, amqp.Publishing{Body: d.Body})
	if err != nil {
		return err // no reply-to: to the dead queue at once
	}
	_, err = replies.SendTx(ctx, bridge.SQL(tx), reply)
	return err
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
