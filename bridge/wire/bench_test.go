package wire_test

import (
	"bytes"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// benchMessage is a message as applications send it: 512 bytes, a few properties.
func benchMessage() bridge.Message {
	return bridge.Message{
		ID:         uuid.Must(uuid.NewV7()),
		Exchange:   "orders",
		RoutingKey: "order.placed",
		Publishing: amqp.Publishing{
			ContentType: "application/json",
			Headers:     amqp.Table{"tenant": "north"},
			Body:        bytes.Repeat([]byte("x"), 512),
		},
	}
}

// staged is the message as it comes out of the staging queue.
func staged(b *testing.B) amqp.Delivery {
	p, err := wire.Encode(benchMessage(), uuid.New())
	if err != nil {
		b.Fatal(err)
	}
	return amqp.Delivery{MessageId: p.MessageId, Headers: p.Headers, ContentType: p.ContentType, DeliveryMode: p.DeliveryMode, Body: p.Body}
}

func BenchmarkEncode(b *testing.B) {
	m, ledger := benchMessage(), uuid.New()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := wire.Encode(m, ledger); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	d := staged(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := wire.Parse(d); err != nil {
			b.Fatal(err)
		}
	}
}
