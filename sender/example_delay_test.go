package sender_test

import (
	"context"
	"database/sql"
	"log"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/sender"
)

// A reminder is sent in an hour, unless the order is paid before. An application stores the
// reminder's ID with the order.
func ExampleSender_Cancel() {
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
	broker, err := bridge.NewBroker("amqp://shop:secret@localhost/", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	s, err := sender.New(ledger, broker, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, order := range []string{"ten dates", "eleven limes"} {
		reminder, err := orderUnpaid(ctx, db, s, order)
		if err != nil {
			log.Fatal(err)
		}
		if order == "ten dates" {
			if err := pay(ctx, db, s, order, reminder); err != nil {
				log.Fatal(err)
			}
		}
	}
}

func orderUnpaid(ctx context.Context, db *sql.DB, s *sender.Sender, order string) (reminder uuid.UUID, err error) {
	err = s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (body) VALUES ($1)`, order); err != nil {
			return err
		}
		ids, err := tx.Send(bridge.Message{
			NotBefore:  time.Now().Add(time.Hour),
			RoutingKey: "emails",
			Publishing: amqp.Publishing{Body: []byte("pay for " + order)},
		})
		if err != nil {
			return err
		}
		reminder = ids[0]
		return nil
	})
	return reminder, err
}

func pay(ctx context.Context, db *sql.DB, s *sender.Sender, order string, reminder uuid.UUID) error {
	return s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE orders SET body = $1 || ', paid' WHERE body = $1`, order); err != nil {
			return err
		}
		_, err := s.Cancel(ctx, tx, reminder) // false: the reminder is on its way
		return err
	})
}
