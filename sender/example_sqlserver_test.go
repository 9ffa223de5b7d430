package sender_test

import (
	"context"
	"database/sql"
	"log"

	_ "github.com/microsoft/go-mssqldb" // the driver
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/sender"
)

// On SQL Server or Azure SQL only the driver and the ledger differ.
func ExampleSender_InTx_sqlServer() {
	ctx := context.Background()
	db, err := sql.Open("sqlserver", "sqlserver://shop:secret@localhost?database=shop")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	ledger, err := sqlserver.Open(ctx, db)
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
	if err := acceptOrder(ctx, db, s, "five cherries"); err != nil {
		log.Fatal(err)
	}
	if err := s.Flush(ctx); err != nil { // before the Broker is closed
		log.Print(err)
	}
}

func acceptOrder(ctx context.Context, db *sql.DB, s *sender.Sender, order string) error {
	return s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (body) VALUES (@p1)`, order); err != nil {
			return err // rolls back
		}
		_, err := tx.Send(bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte(order)}})
		return err
	})
}
