package idempotencytest_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/idempotencytest"
	"github.com/twoqueue/twoqueue/sender/sendertest"
)

// The first outcome counts: a second one would end the channel.
func TestADeliveryReportsItsOutcome(t *testing.T) {
	for want, tell := range map[idempotencytest.Outcome]func(amqp.Delivery) error{
		idempotencytest.Unacked:      func(amqp.Delivery) error { return nil },
		idempotencytest.Acked:        func(d amqp.Delivery) error { return d.Ack(false) },
		idempotencytest.HandedBack:   func(d amqp.Delivery) error { return d.Nack(false, true) },
		idempotencytest.DeadLettered: func(d amqp.Delivery) error { return d.Reject(false) },
	} {
		d := idempotencytest.New(bridge.Message{})
		if err := tell(d.Delivery); err != nil {
			t.Error(err)
		}
		if got := d.Outcome(); got != want {
			t.Errorf("%s, must be %s", got, want)
		}
		if err := d.Ack(false); (err == nil) != (want == idempotencytest.Unacked) {
			t.Errorf("acked after it was %s: %v", want, err)
		}
	}
}

func TestADeliveryHasAllOfTheMessage(t *testing.T) {
	id := uuid.Must(uuid.NewV7())
	p := amqp.Publishing{
		Headers: amqp.Table{"a": "b"}, ContentType: "text/plain", ContentEncoding: "gzip", DeliveryMode: amqp.Persistent, Priority: 3,
		CorrelationId: "c", ReplyTo: "r", Expiration: "1000", MessageId: id.String(), Timestamp: time.Unix(1, 0), Type: "order", UserId: "u", AppId: "app", Body: []byte("body"),
	}
	d := idempotencytest.New(bridge.Message{ID: id, Exchange: "orders", RoutingKey: "placed", Publishing: p})
	got := amqp.Publishing{}
	from, to := reflect.ValueOf(d.Delivery), reflect.ValueOf(&got).Elem()
	for i := range to.NumField() {
		to.Field(i).Set(from.FieldByName(to.Type().Field(i).Name))
	}
	if !reflect.DeepEqual(got, p) || d.Exchange != "orders" || d.RoutingKey != "placed" || d.Redelivered {
		t.Errorf("the delivery is %+v", d.Delivery)
	}
	again := d.Again()
	if !again.Redelivered || again.MessageId != d.MessageId || again.DeliveryTag == d.DeliveryTag {
		t.Errorf("again it is %+v", again.Delivery)
	}
}

// The message that a sender has committed is handled; a receiver that stops leaves it unacked.
func TestACommittedMessageReachesTheFakeReceiver(t *testing.T) {
	s := sendertest.New(t, nil)
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.SendTx(t.Context(), bridge.SQL(tx), bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte("pears")}}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	m := newMailer(t)
	for _, message := range s.Committed() {
		stopped, cancel := context.WithCancel(t.Context())
		cancel()
		left := idempotencytest.New(message)
		if err := m.handle(stopped, left.Delivery); !errors.Is(err, idempotency.ErrLeftUnacked) || left.Outcome() != idempotencytest.Unacked {
			t.Errorf("%v, %s", err, left.Outcome())
		}
		d := left.Again()
		if err := m.handle(t.Context(), d.Delivery); err != nil || d.Outcome() != idempotencytest.Acked {
			t.Errorf("%v, %s", err, d.Outcome())
		}
	}
	var body string
	if err := m.db.QueryRowContext(t.Context(), `SELECT body FROM emails`).Scan(&body); err != nil || body != "pears" {
		t.Errorf("%q, %v", body, err)
	}
}
