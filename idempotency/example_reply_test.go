package idempotency_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/cenkalti/backoff/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/verifier"
)

// A complete receiver that replies: it bills each order once. One transaction notes that the order
// is handled, writes its invoice and sends the reply. The shop has sent the order by its own Sender,
// with ReplyTo and CorrelationId in its Publishing, and handles the reply by its own Deduplicator.
func Example_requestAndReply() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	db, err := sql.Open("pgx", "postgres://billing:secret@localhost/billing")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	broker, err := bridge.Dial(ctx, "amqp://billing:secret@localhost/", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	if err := serve(ctx, db, broker); err != nil {
		log.Fatal(err)
	}
}

// serve bills orders, 20 at a time. It reconnects by itself. When ctx ends, the attempts that have
// begun may finish, and all other orders stay in the queue.
func serve(ctx context.Context, db *sql.DB, broker *bridge.Broker) error {
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

	// The replies: this database's own staging queue and verifier.
	staging := bridge.Topology{Queue: "billing"}
	if err := staging.Declare(ctx, broker); err != nil {
		return err
	}
	options := &verifier.Options{Topology: staging, Allow: []verifier.Allow{{RoutingKey: "invoices"}}}
	verify, err := verifier.New(ledger, broker, options)
	if err != nil {
		return err
	}
	replies, err := sender.New(ledger, broker, &sender.Options{Queue: staging.Queue})
	if err != nil {
		return err
	}
	defer replies.Flush(context.Background()) // when nothing sends any more, and the broker is still open

	// The orders.
	const workers = 20
	queues, err := idempotency.DeclareReceiver(ctx, broker, "orders", nil)
	if err != nil {
		return err
	}
	dedup, err := idempotency.New(inbox, "billing", &idempotency.Options{Queues: queues})
	if err != nil {
		return err
	}
	receive, err := idempotency.NewConsumer(broker, "orders", func(ctx context.Context, d amqp.Delivery) error {
		return dedup.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error { return bill(ctx, tx, replies, d) })
	}, &idempotency.ConsumerOptions{Workers: workers})
	if err != nil {
		return err
	}

	db.SetMaxIdleConns(workers + options.Connections()) // database/sql keeps only 2
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return verify.Run(ctx) })
	all.Go(func() error { return receive.Run(ctx) })
	return all.Wait()
}

// bill writes the invoice of an order and replies, both in tx.
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
