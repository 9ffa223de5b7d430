package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
)

// A whole receiver: it stores each e-mail of a queue once, until SIGTERM stops it.
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
	guard, err := idempotency.New(inbox, "mailer", &idempotency.Options{DeadLetterExchange: true}) // see 'Where dead-lettered messages go'
	if err != nil {
		log.Fatal(err)
	}
	conn, err := amqp.Dial("amqp://mailer:secret@localhost/")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	if err := consume(ctx, conn, db, guard); err != nil {
		log.Fatal(err) // whoever starts the process starts it anew
	}
}

// consume handles what is in the queue, until ctx ends; or the connection does, which is
// an error.
func consume(ctx context.Context, conn *amqp.Connection, db *sql.DB, guard *idempotency.Guard) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	const prefetch = 10
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return err
	}
	const autoAck, exclusive, noLocal, noWait = false, false, false, false // acks are the guard's
	deliveries, err := ch.Consume("emails", "", autoAck, exclusive, noLocal, noWait, nil)
	if err != nil {
		return err
	}
	for d := range idempotency.Until(ctx, deliveries) {
		err := guard.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO emails (body) VALUES ($1)`, string(d.Body))
			return err
		})
		if err != nil {
			log.Print(err) // the message comes again
		}
	}
	err = ch.Close() // unacked messages go back to the queue
	if ctx.Err() == nil {
		return errors.Join(errors.New("the channel was closed"), err)
	}
	return err
}
