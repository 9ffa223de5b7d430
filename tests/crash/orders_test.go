package crash_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
)

// No unique index: what is done twice shall show.
const ordersTable = `CREATE TABLE orders (id VARCHAR(36))`

func newIDs(n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	return ids
}

// message is the message of an order; the ID decides its whole content.
func message(id uuid.UUID, target string) bridge.Message {
	return bridge.Message{ID: id, RoutingKey: target, Publishing: amqp.Publishing{
		ContentType: "text/plain",
		Type:        "order placed",
		Headers:     amqp.Table{"order": id.String()},
		Body:        []byte("order " + id.String()),
	}}
}

// isMessage tells whether d is, in all its parts, the message of its order.
func isMessage(d amqp.Delivery) bool {
	id, err := uuid.Parse(d.MessageId)
	if err != nil {
		return false
	}
	want := message(id, "").Publishing
	return string(d.Body) == string(want.Body) && d.ContentType == want.ContentType && d.Type == want.Type &&
		len(d.Headers) == 1 && d.Headers["order"] == want.Headers["order"] && d.DeliveryMode == amqp.Persistent
}

// place inserts the orders and stages their messages in a transaction that it
// leaves open.
func place(ctx context.Context, db *sql.DB, s *sender.Sender, target string, ids ...uuid.UUID) (*sql.Tx, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	messages := make([]bridge.Message, len(ids))
	for i, id := range ids {
		messages[i] = message(id, target)
		if _, err := tx.ExecContext(ctx, fmt.Sprintf(`INSERT INTO orders (id) VALUES ('%s')`, id)); err != nil {
			_ = tx.Rollback()
			return nil, fmt.Errorf("insert order: %w", err)
		}
	}
	if _, err := s.SendTx(ctx, bridge.SQL(tx), messages...); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return tx, nil
}
