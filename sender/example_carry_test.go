package sender_test

import (
	"context"
	"database/sql"
	"log"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
)

// A shop whose commits do not wait for RabbitMQ: the ledger's rows hold its small messages too.
// Before it ends, it waits until they are confirmed.
func ExampleSender_Flush_carrySmall() {
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
	s, err := sender.New(ledger, broker, &sender.Options{Carry: sender.CarrySmall})
	if err != nil {
		log.Fatal(err)
	}
	if err := takeOrder(ctx, db, s, "seven quinces"); err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := s.Flush(ctx); err != nil {
		log.Print(err) // a verifier stages the messages
	}
}
