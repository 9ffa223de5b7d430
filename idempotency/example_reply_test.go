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
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
)

// A bank gets requests for payments, and replies. One transaction makes the payment, sends the reply
// and records that the request is handled. The shop sent the request by its own sender, with ReplyTo
// and CorrelationId in its Publishing, and handles the reply by its own Deduplicator. The bank's
// database has both a ledger and an inbox.
func Example_requestAndReply() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	db, err := sql.Open("pgx", "postgres://bank:secret@localhost/bank")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	inbox, err := postgres.OpenInbox(ctx, db)
	if err != nil {
		log.Fatal(err)
	}
	ledger, err := postgres.Open(ctx, db)
	if err != nil {
		log.Fatal(err)
	}
	broker, err := bridge.Dial(ctx, "amqp://bank:secret@localhost/", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	queues, err := idempotency.DeclareReceiver(ctx, broker, "payments", nil)
	if err != nil {
		log.Fatal(err)
	}
	b := bank{db: db}
	if b.dedup, err = idempotency.New(inbox, "bank", &idempotency.Options{Queues: queues}); err != nil {
		log.Fatal(err)
	}
	// A verifier on this database's staging queue forwards the replies; it must allow their queue.
	if b.sender, err = sender.New(ledger, broker, nil); err != nil {
		log.Fatal(err)
	}
	consumer, err := idempotency.NewConsumer(broker, "payments", b.answer, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := consumer.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

type bank struct {
	db     *sql.DB
	dedup  *idempotency.Deduplicator
	sender *sender.Sender
}

// answer replies to a request once.
func (b *bank) answer(ctx context.Context, request amqp.Delivery) error {
	return b.dedup.Handle(ctx, b.db, request, func(ctx context.Context, tx *sql.Tx) error { return b.pay(ctx, tx, request) })
}

// pay handles a request, entirely in tx.
func (b *bank) pay(ctx context.Context, tx *sql.Tx, request amqp.Delivery) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO payments (about) VALUES ($1)`, request.CorrelationId); err != nil {
		return err
	}
	reply, err := idempotency.Reply(request, amqp.Publishing{Body: []byte("paid")})
	if err != nil {
		return err // no reply-to: the request is dead-lettered
	}
	_, err = b.sender.SendTx(ctx, bridge.SQL(tx), reply)
	return err
}
