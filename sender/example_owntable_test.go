package sender_test

import (
	"context"
	"database/sql"
	"log"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
)

// The application's own table is the ledger: each parcel already has a unique ID, which becomes the
// ID of its one message. No other row is inserted, and none is deleted later. The verifier must use
// the same table.
func ExampleNew_ownTable() {
	ctx := context.Background()
	db, err := sql.Open("pgx", "postgres://shop:secret@localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	ledger, err := postgres.OpenOwnTable(ctx, db, bridge.OwnTable{Table: "parcels", Column: "id"})
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
	if err := packParcel(ctx, db, s, "six figs"); err != nil {
		log.Fatal(err)
	}
}

func packParcel(ctx context.Context, db *sql.DB, s *sender.Sender, content string) error {
	return s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		// The row comes first: without it SendTx and InTx return bridge.ErrNoRow.
		if _, err := tx.ExecContext(ctx, `INSERT INTO parcels (id, body) VALUES ($1, $2)`, id.String(), content); err != nil {
			return err
		}
		_, err = tx.Send(bridge.Message{ID: id, RoutingKey: "parcels", Publishing: amqp.Publishing{Body: []byte(content)}})
		return err
	})
}
