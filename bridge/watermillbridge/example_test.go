package watermillbridge_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"os"
	"os/signal"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/bridge/watermillbridge"
	"github.com/twoqueue/twoqueue/sender"
)

// A service that bills orders: it stores an invoice for each order, and sends it on, once. A verifier
// that allows the queues orders and invoices runs elsewhere.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Getenv("AMQP_URL")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, databaseURL, amqpURL string) error {
	db, err := sql.Open("pgx", databaseURL)
	if err != nil {
		return err
	}
	defer db.Close()
	broker, err := bridge.Dial(ctx, amqpURL, nil)
	if err != nil {
		return err
	}
	defer broker.Close()
	if err := errors.Join(migrate.Ledger(ctx, db, migrate.PostgreSQL), migrate.Inbox(ctx, db, migrate.PostgreSQL)); err != nil {
		return err
	}
	ledger, err := postgres.Open(ctx, db)
	if err != nil {
		return err
	}
	inbox, err := postgres.OpenInbox(ctx, db)
	if err != nil {
		return err
	}
	s, err := sender.New(ledger, broker, &sender.Options{Queue: "staging"})
	if err != nil {
		return err
	}
	publisher := watermillbridge.NewPublisher(nil)
	subscriber, err := watermillbridge.NewSubscriber(broker, db, inbox, "billing", &watermillbridge.SubscriberOptions{Sender: s})
	if err != nil {
		return err
	}
	defer subscriber.Close()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(nil))
	if err != nil {
		return err
	}
	router.AddMiddleware(watermillbridge.Reasons)
	router.AddHandler("bill", "orders", subscriber, "invoices", publisher, func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		tx := watermillbridge.TxFromContext(ctx)
		if _, err := tx.ExecContext(ctx, `INSERT INTO invoices (body) VALUES ($1)`, string(msg.Payload)); err != nil {
			return nil, err // rolls back, and the message comes again
		}
		return []*message.Message{message.NewMessageWithContext(ctx, watermill.NewUUID(), msg.Payload)}, nil
	})
	return errors.Join(router.Run(ctx), s.Flush(context.WithoutCancel(ctx)))
}
