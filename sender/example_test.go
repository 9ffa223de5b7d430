package sender_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
)

// In a transaction of your own.
func ExampleSender_SendTx() {
	_ = func(ctx context.Context, s *sender.Sender, db *sql.DB, order []byte) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // after the commit it does nothing
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (body) VALUES ($1)`, order); err != nil {
			return err
		}
		if _, err := s.SendTx(ctx, tx, bridge.Message{
			Exchange:   "orders",
			RoutingKey: "order.placed",
			Publishing: amqp.Publishing{ContentType: "application/json", Body: order},
		}); err != nil {
			return err // and the deferred rollback
		}
		return tx.Commit()
	}
}

// With sqlx, several messages at once, and an ID of your own.
func ExampleSender_SendTx_sqlx() {
	type order struct {
		ID    string `db:"id"`
		Email string `db:"email"`
	}
	_ = func(ctx context.Context, s *sender.Sender, db *sqlx.DB, o order, invoice bridge.Message) error {
		tx, err := db.BeginTxx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.NamedExecContext(ctx, `INSERT INTO orders (id, email) VALUES (:id, :email)`, o); err != nil {
			return err
		}
		welcome := bridge.Message{
			RoutingKey: "emails", // the default exchange: to the queue of this name
			Publishing: amqp.Publishing{Body: []byte(o.Email)},
		}
		ids, err := s.SendTx(ctx, tx, welcome, invoice)
		if err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("messages %v: %w", ids, err)
		}
		return nil
	}
}

// The helper begins, stages last, and commits.
func ExampleSender_InTx() {
	_ = func(ctx context.Context, s *sender.Sender, db *sql.DB, order []byte) error {
		return s.InTx(ctx, db, nil, func(tx *sender.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO orders (body) VALUES ($1)`, order); err != nil {
				return err
			}
			_, err := tx.Send(bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: order}})
			return err
		})
	}
}
