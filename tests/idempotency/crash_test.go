package idempotency_test

import (
	"context"
	"database/sql"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
)

// The points at which a receiver is killed that handles one message.
const (
	inHandler   = "in the handler" // after its effects, before the commit
	afterCommit = "after the commit, before the ack"
)

// handleToPoint handles one message and stops at its point.
func handleToPoint(ctx context.Context, c child, _ *amqp.Channel, deliveries <-chan amqp.Delivery) error {
	db, err := open(ctx, c.Driver, c.DSN)
	if err != nil {
		return err
	}
	guard, err := idempotency.New(db.inbox, "shop", &idempotency.Options{HandBack: true})
	if err != nil {
		return err
	}
	d := <-deliveries
	if c.What == afterCommit {
		d.Acknowledger = stopBeforeAck{d.Acknowledger}
	}
	return guard.Handle(ctx, db.DB, d, func(ctx context.Context, tx *sql.Tx) error {
		if err := db.placeOrder(ctx, tx, d.MessageId); err != nil {
			return err
		}
		if c.What == inHandler {
			stop()
		}
		return nil
	})
}

type stopBeforeAck struct{ amqp.Acknowledger }

func (stopBeforeAck) Ack(uint64, bool) error {
	stop()
	return nil
}

// killHandling kills a receiver at a point.
func killHandling(t *testing.T, q *queue, db *database, point string) {
	t.Helper()
	if !q.kill(child{Does: "handle", What: point, Driver: db.driver, DSN: db.dsn}) {
		t.Fatal("it was not killed")
	}
}

func TestAReceiverKilledAfterItsCommitBeforeItsAckHasHandledTheMessage(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		q := newQueue(t, quorum)
		q.publish("m1")
		killHandling(t, q, db, afterCommit)
		db.wantOrders(t, 1)

		guard := newGuard(t, db.inbox, idempotency.Options{})
		d := next(t, q.consume())
		if !d.Redelivered {
			t.Error("the delivery is not a redelivery")
		}
		err := guard.Handle(t.Context(), db.DB, d, func(context.Context, *sql.Tx) error {
			t.Error("handled twice")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if stats := guard.Stats(); stats != (idempotency.Stats{Duplicates: 1}) {
			t.Errorf("stats are %+v", stats)
		}
		db.wantOrders(t, 1)
		q.wantEmpty()
	})
}

func TestAReceiverKilledBeforeItsCommitHasDoneNothing(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		q := newQueue(t, quorum)
		q.publish("m1")
		killHandling(t, q, db, inHandler)
		db.wantOrders(t, 0)

		guard := newGuard(t, db.inbox, idempotency.Options{})
		err := guard.Handle(t.Context(), db.DB, next(t, q.consume()), func(ctx context.Context, tx *sql.Tx) error {
			return db.placeOrder(ctx, tx, "m1")
		})
		if err != nil {
			t.Fatal(err)
		}
		if stats := guard.Stats(); stats != (idempotency.Stats{Handled: 1}) {
			t.Errorf("stats are %+v", stats)
		}
		db.wantOrders(t, 1)
		q.wantEmpty()
	})
}

// What the package comment promises for a message whose handling kills the
// process: the queue's delivery limit and dead-letter exchange catch it.
func TestAMessageThatKillsItsReceiversIsDeadLetteredByTheQueue(t *testing.T) {
	db := newSQLite(t)
	q := newQueue(t, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 2,
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
	q.publish("m1")
	for range 3 {
		killHandling(t, q, db, inHandler)
	}
	if d := q.nextDead(); d.MessageId != "m1" {
		t.Errorf("message %q is in the dead queue", d.MessageId)
	}
	db.wantOrders(t, 0)
	q.wantEmpty()
}
