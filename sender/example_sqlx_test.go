package sender_test

import (
	"context"
	"fmt"
	"log"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	"github.com/jmoiron/sqlx"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
)

type order struct {
	ID   uuid.UUID `db:"id"`
	Body string    `db:"body"`
}

// With sqlx, and several messages at once, one of them with the application's own ID.
func ExampleSender_SendTx_sqlx() {
	ctx := context.Background()
	db, err := sqlx.Open("pgx", "postgres://shop:secret@localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	ledger, err := postgres.Open(ctx, db.DB)
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
	if err := keepOrder(ctx, db, s, order{ID: uuid.Must(uuid.NewV7()), Body: "four plums"}); err != nil {
		log.Fatal(err)
	}
	if err := s.Flush(ctx); err != nil { // before the Broker is closed
		log.Print(err)
	}
}

func keepOrder(ctx context.Context, db *sqlx.DB, s *sender.Sender, o order) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.NamedExecContext(ctx, `INSERT INTO parcels (id, body) VALUES (:id, :body)`, o); err != nil {
		return err
	}
	toShip := bridge.Message{ID: o.ID, RoutingKey: "parcels", Publishing: amqp.Publishing{Body: []byte(o.Body)}}
	toThank := bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte(o.Body)}}
	ids, err := s.SendTx(ctx, bridge.SQL(tx), toShip, toThank)
	if err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit with messages %v: %w", ids, err)
	}
	return nil
}
