package sender_test

import (
	"context"
	"database/sql"
	"log"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
)

// A shop that works while RabbitMQ is out: it starts and commits without RabbitMQ, because the
// ledger's rows also hold its small messages. Before it ends, it waits a while until they are
// confirmed. Verifiers stage the others from their rows.
func ExampleSender_Flush() {
	ctx := context.Background()
	db, err := sql.Open("pgx", "postgres://shop:secret@localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	ledger, err := postgres.Open(ctx, db)
	if err != nil {
		log.Fatal(err)
	}
	broker, err := bridge.NewBroker("amqp://shop:secret@localhost/", nil) // does not connect
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	s, err := sender.New(ledger, broker, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := takeOrder(ctx, db, s, "seven quinces"); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := s.Flush(ctx); err != nil {
		log.Print(err)
	}
}

func takeOrder(ctx context.Context, db *sql.DB, s *sender.Sender, order string) error {
	return s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (body) VALUES ($1)`, order); err != nil {
			return err // rolls back
		}
		_, err := tx.Send(bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte(order)}})
		return err
	})
}
