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

// A shop on PostgreSQL places an order, and the message about it is sent if and only if the order
// is committed. verifier -migrate has made the tables, and a verifier has made the queues.
func Example() {
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
	if err := placeOrder(ctx, db, s, "two apples"); err != nil {
		log.Fatal(err)
	}
	if err := s.Flush(ctx); err != nil { // before the Broker is closed
		log.Print(err)
	}
}

// placeOrder retries with a new transaction if that may help.
func placeOrder(ctx context.Context, db *sql.DB, s *sender.Sender, order string) error {
	const attempts = 3
	var err error
	for range attempts {
		err = s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO orders (body) VALUES ($1)`, order); err != nil {
				return err // rolls back
			}
			_, err := tx.Send(bridge.Message{
				RoutingKey: "emails", // of the default exchange: it routes to the queue of this name
				Publishing: amqp.Publishing{ContentType: "text/plain", Body: []byte(order)},
			})
			return err
		})
		if !bridge.Retryable(err) { // ErrCommitUnknown is not: the order may be there
			break
		}
	}
	return err
}
