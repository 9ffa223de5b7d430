package sender_test

import (
	"context"
	"database/sql"
	"log"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
)

// The message is staged first, so that the broker confirms it while the transaction's other
// statements run. InTx commits when both are done.
func ExampleTx_Stage() {
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
	broker, err := bridge.Dial(ctx, "amqp://shop:secret@localhost/", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	s, err := sender.New(ledger, broker, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := replaceOrder(ctx, db, s, "nine cherries", "nine medlars"); err != nil {
		log.Fatal(err)
	}
	if err := s.Flush(ctx); err != nil { // before the Broker is closed
		log.Print(err)
	}
}

func replaceOrder(ctx context.Context, db *sql.DB, s *sender.Sender, old, order string) error {
	return s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
		if _, err := tx.Stage(ctx, bridge.Message{
			RoutingKey: "emails",
			Publishing: amqp.Publishing{ContentType: "text/plain", Body: []byte(order)},
		}); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM orders WHERE body = $1`, old); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO orders (body) VALUES ($1)`, order)
		return err
	})
}
