package bridge_test

import (
	"bytes"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

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
	messages := []bridge.Outgoing{{
		Target:     bridge.Target{RoutingKey: topology.Queue},
		Publishing: amqp.Publishing{DeliveryMode: amqp.Persistent, Body: bytes.Repeat([]byte("x"), 512)},
	}}
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
