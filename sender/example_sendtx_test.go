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

// A transaction that the application begins and ends itself, on PostgreSQL.
func ExampleSender_SendTx() {
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
	if err := storeOrder(ctx, db, s, "three pears"); err != nil {
		log.Fatal(err)
	}
	if err := s.Flush(ctx); err != nil { // before the Broker is closed
		log.Print(err)
	}
}

func storeOrder(ctx context.Context, db *sql.DB, s *sender.Sender, order string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after the commit it does nothing
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders (body) VALUES ($1)`, order); err != nil {
		return err
	}
	// Last, because the transaction is open until the broker has confirmed.
	if _, err := s.SendTx(ctx, bridge.SQL(tx), bridge.Message{
		Exchange:   "orders",
		RoutingKey: "order.placed",
		Publishing: amqp.Publishing{ContentType: "text/plain", Body: []byte(order)},
	}); err != nil {
		return err // the deferred Rollback follows
	}
	return tx.Commit()
}
