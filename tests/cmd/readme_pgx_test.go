package cmd_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pgxreceiver"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/pgxsender"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// The text between the marks must be in the README too.

// README begin

// The shop, with pgx.
func placeOrderByPgx(ctx context.Context, pool *pgxpool.Pool, s *sender.Sender, order string) error {
	return pgxsender.InTx(ctx, s, pool, pgx.TxOptions{}, func(tx *pgxsender.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1)`, order); err != nil {
			return err // rolls back
		}
		_, err := tx.Send(bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte(order)}})
		return err
	})
}

// The receiver, with pgx: its consumer calls this in the place of dedup.Handle.
func sendEmailByPgx(ctx context.Context, pool *pgxpool.Pool, dedup *idempotency.Deduplicator, d amqp.Delivery) error {
	return pgxreceiver.Handle(ctx, dedup, pool, pgx.TxOptions{}, d, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO emails VALUES ($1)`, string(d.Body))
		return err
	})
}

// README end

func pgxExample(t *testing.T, s *stage.Stage) (dedup *idempotency.Deduplicator, place func(order string) error, receive func(context.Context) error) {
	t.Helper()
	ctx := t.Context()
	pool, err := pgxpool.New(ctx, s.DatabaseURL)
	must(t, err)
	ledger, err := pgxbridge.Open(ctx, pool)
	must(t, err)
	inbox, err := pgxbridge.OpenInbox(ctx, pool)
	must(t, err)
	t.Cleanup(func() {
		inbox.DB().Close()
		ledger.DB().Close()
		pool.Close()
	})
	queues, err := idempotency.DeclareReceiver(ctx, s.Broker, "emails", nil)
	must(t, err)
	if dedup, err = idempotency.New(inbox, "mailer", &idempotency.Options{Queues: queues}); err != nil {
		t.Fatal(err)
	}
	sender, err := sender.New(ledger, s.Broker, nil)
	must(t, err)
	return dedup, func(order string) error { return placeOrderByPgx(ctx, pool, sender, order) },
		func(ctx context.Context) error {
			consumer, err := idempotency.NewConsumer(s.Broker, "emails", func(ctx context.Context, d amqp.Delivery) error {
				return sendEmailByPgx(ctx, pool, dedup, d)
			}, nil)
			if err != nil {
				return err
			}
			return consumer.Run(ctx)
		}
}
