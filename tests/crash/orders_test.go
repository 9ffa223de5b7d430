package crash_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
)

// There is no unique index: an order that is inserted twice must show.
const ordersTable = `CREATE TABLE orders (id VARCHAR(36))`

func newIDs(n int) []uuid.UUID {
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	return ids
}

// message returns the message of an order. The ID determines its whole content.
func message(id uuid.UUID, target string) bridge.Message {
	return bridge.Message{ID: id, RoutingKey: target, Publishing: amqp.Publishing{
		ContentType: "text/plain",
		Type:        "order placed",
		Headers:     amqp.Table{"order": id.String()},
		Body:        []byte("order " + id.String()),
	}}
}

// isMessage reports whether d, in all its parts, is the message of its order.
func isMessage(d amqp.Delivery) bool {
	id, err := uuid.Parse(d.MessageId)
	if err != nil {
		return false
	}
	want := message(id, "").Publishing
	return string(d.Body) == string(want.Body) && d.ContentType == want.ContentType && d.Type == want.Type &&
		len(d.Headers) == 1 && d.Headers["order"] == want.Headers["order"] && d.DeliveryMode == amqp.Persistent
}

// place inserts the orders, sends their messages, and returns the open transaction.
func place(ctx context.Context, db *sql.DB, s *sender.Sender, target string, ids ...uuid.UUID) (*sql.Tx, error) {
	return placeDelayed(ctx, db, s, target, time.Time{}, ids...)
}

// placeDelayed is place with messages that are delayed until notBefore, unless that is zero.
func placeDelayed(ctx context.Context, db *sql.DB, s *sender.Sender, target string, notBefore time.Time, ids ...uuid.UUID) (*sql.Tx, error) {
	return inTx(ctx, db, func(tx *sql.Tx) error {
		if err := insert(ctx, tx, ids); err != nil {
			return err
		}
		all := messages(ids, target)
		for i := range all {
			all[i].NotBefore = notBefore
		}
		_, err := s.SendTx(ctx, bridge.SQL(tx), all...)
		return err
	})
}

// placeEarly is place with early staging: it stages the messages, calls begun while they are in
// flight, and then inserts the orders.
func placeEarly(ctx context.Context, db *sql.DB, s *sender.Sender, target string, begun func(), ids ...uuid.UUID) (*sql.Tx, error) {
	return inTx(ctx, db, func(tx *sql.Tx) error {
		staged, err := s.StageTx(ctx, bridge.SQL(tx), messages(ids, target)...)
		if err != nil {
			return err
		}
		begun()
		if err := insert(ctx, tx, ids); err != nil {
			return err
		}
		return staged.Wait(ctx)
	})
}

// inTx runs fn in a transaction. It leaves the transaction open, and rolls it back only on an
// error.
func inTx(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) (*sql.Tx, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := fn(tx); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return tx, nil
}

func insert(ctx context.Context, tx *sql.Tx, ids []uuid.UUID) error {
	for _, id := range ids {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf(`INSERT INTO orders (id) VALUES ('%s')`, id)); err != nil {
			return fmt.Errorf("insert order: %w", err)
		}
	}
	return nil
}

func messages(ids []uuid.UUID, target string) []bridge.Message {
	out := make([]bridge.Message, len(ids))
	for i, id := range ids {
		out[i] = message(id, target)
	}
	return out
}
