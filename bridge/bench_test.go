package bridge_test

import (
	"bytes"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
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

// BenchmarkPublish publishes and awaits confirms, on a broker of its own, from 32
// goroutines; the figures are per message.
func BenchmarkPublish(b *testing.B) {
	server := servertest.StartRabbitMQ(b, nil)
	broker, err := bridge.Dial(b.Context(), server.URL(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer broker.Close()
	topology := bridge.Topology{Queue: "staging"}
	if err := topology.Declare(b.Context(), broker); err != nil {
		b.Fatal(err)
	}
	p, err := wire.Encode(benchMessage(), uuid.New())
	if err != nil {
		b.Fatal(err)
	}
	messages := []bridge.Outgoing{{Target: bridge.Target{RoutingKey: topology.Queue}, Publishing: p}}
	b.SetParallelism(32)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := broker.Publish(b.Context(), messages); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
