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

// A shop that has no connection to RabbitMQ: the ledger's rows hold its messages, and a verifier
// stages them.
func ExampleNew_withoutBroker() {
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
	s, err := sender.New(ledger, nil, &sender.Options{Carry: sender.CarryAlways})
	if err != nil {
		log.Fatal(err)
	}
	err = s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (body) VALUES ('ten lemons')`); err != nil {
			return err // rolls back
		}
		_, err := tx.Send(bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte("ten lemons")}})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
