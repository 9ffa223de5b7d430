package cmd_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/sender/pgxsender"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// What stands between the marks stands in the README too.

// README begin

// The shop, with pgx.
func placeOrderByPgx(ctx context.Context, pool *pgxpool.Pool, s *sender.Sender, order string) error {
	return pgxsender.InTx(ctx, s, pool, pgx.TxOptions{}, func(tx *pgxsender.Transaction) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1)`, order); err != nil {
			return err // rolls back
		}
		_, err := tx.Send(bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte(order)}})
		return err
	})
}

// The receiver, in a transaction of its own making.
func sendEmailsByPgx(ctx context.Context, pool *pgxpool.Pool, guard *idempotency.Guard, deliveries <-chan amqp.Delivery) {
	for d := range deliveries {
		err := guard.HandleTx(ctx, d, func(ctx context.Context, claim idempotency.Claim) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if fresh, err := claim(ctx, pgxbridge.Tx(tx)); err != nil || !fresh {
					return err
				}
				_, err := tx.Exec(ctx, `INSERT INTO emails VALUES ($1)`, string(d.Body))
				return err
			})
		})
		if err != nil {
			slog.Error("e-mail not finished; it comes again", "error", err)
		}
	}
}

// README end

// The example with pgx, and a worker beside it.
func TestReadmeExampleWithPgx(t *testing.T) {
	t.Parallel()
	s := stage.On(t, stage.Postgres, stage.New(t, stage.Postgres).AMQP, bridge.Topology{Queue: "twoqueue"})
	ctx := t.Context()
	s.Queue("emails", nil)
	if err := migrate.Inbox(ctx, s.DB, migrate.PostgreSQL); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DB.ExecContext(ctx, `CREATE TABLE orders (name text PRIMARY KEY); CREATE TABLE emails (body text)`); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, s.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ledger, err := pgxbridge.Open(ctx, pool)
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.DB().Close()
	inbox, err := pgxbridge.OpenInbox(ctx, pool)
	if err != nil {
		t.Fatal(err)
	}
	defer inbox.DB().Close()
	guard, err := idempotency.New(inbox, "mailer", &idempotency.Options{HandBack: true})
	if err != nil {
		t.Fatal(err)
	}
	sender, err := sender.New(ledger, s.Broker, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := verify(t, s)
	deliveries, stop := s.Consume("emails")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		sendEmailsByPgx(ctx, pool, guard, deliveries)
	}()
	for _, order := range []string{"apples", "pears"} {
		if err := placeOrderByPgx(ctx, pool, sender, order); err != nil {
			t.Error(err)
		}
	}
	if err := placeOrderByPgx(ctx, pool, sender, "apples"); err == nil {
		t.Error("the same order twice: no error")
	}
	s.Eventually("two e-mails are sent", func() bool {
		var n int
		err := pool.QueryRow(ctx, `SELECT count(*) FROM emails WHERE body IN ('apples', 'pears')`).Scan(&n)
		return err == nil && n == 2
	})
	p.Stop()
	stop()
	<-ended
	if stats := guard.Stats(); stats.Handled != 2 {
		t.Errorf("guard: %+v", stats)
	}
}
