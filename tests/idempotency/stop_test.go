package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// If a stopping receiver requeued a message, it would come again at once, until the queue dropped
// it at its delivery limit. 20 is the default of RabbitMQ 4. The loop over the deliveries is not
// the Consumer's: after ctx has ended it goes on until the channel is closed.
func TestAReceiverThatStopsLosesNothing(t *testing.T) {
	t.Parallel()
	const messages, limit = 10, 20
	db := newDatabase(t, "SQLite")
	q := newQueue(t, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": limit})
	for n := range messages {
		q.publish(fmt.Sprint("m:", n))
	}
	dedup := newDedup(t, db.inbox, idempotency.Options{})
	conn, channel := q.dial()
	must(t, channel.Qos(messages, 0, false))
	deliveries, err := channel.Consume(q.name, "", false, false, false, false, nil)
	must(t, err)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	calls, over := make(chan error), make(chan struct{})
	go func() {
		defer close(over)
		for d := range deliveries {
			calls <- dedup.Handle(ctx, db.DB, d, func(ctx context.Context, tx *sql.Tx) error {
				stop() // in the first handler, which may finish
				return db.placeOrder(ctx, tx, d.MessageId)
			})
		}
	}()
	must(t, servertest.Next(t, "the end of the first call", calls))
	for range messages - 1 {
		if err := servertest.Next(t, "the end of a call", calls); !errors.Is(err, idempotency.ErrLeftUnacked) {
			t.Errorf("a call after the stop got %v", err)
		}
	}
	// A redelivery would arrive before this answer.
	_, err = channel.QueueDeclarePassive(q.name, true, false, false, false, nil)
	must(t, err)
	select {
	case err := <-calls:
		t.Errorf("the broker delivered a message again to a receiver that stops: %v", err)
	default:
	}
	must(t, conn.Close())
	servertest.Next(t, "the end of the loop", over)
	q.waitNoConsumers()
	q.ready(messages - 1)
	if stats := dedup.Stats(); stats.HandedBack != 0 || stats.Handled != 1 {
		t.Errorf("stats are %+v", stats)
	}
}
