package verifier_test

import (
	"log/slog"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// BenchmarkVerifier forwards staged messages of 512 bytes from one quorum queue to
// another, on servers of its own; the figures are per message, the allocations
// those of the whole process. Give it work for some seconds:
//
//	go test -run=NONE -bench=Verifier -benchtime=100000x ./verifier
func BenchmarkVerifier(b *testing.B) {
	postgres := servertest.StartPostgres(b, nil)
	kind := stage.Postgres
	kind.URL = func(testing.TB) string { return postgres.URL() }
	s := stage.On(b, kind, servertest.StartRabbitMQ(b, nil).URL(), bridge.Topology{Queue: "staging"})
	queue := s.Queue("target", amqp.Table{"x-queue-type": "quorum"})
	text := strings.Repeat("x", 512)
	for left := b.N; left > 0; {
		messages := make([]bridge.Message, min(1000, left))
		for i := range messages {
			messages[i] = stage.To(queue, text)
		}
		s.Commit(messages...)
		left -= len(messages)
	}
	b.ReportAllocs()
	b.ResetTimer()
	v := s.Verify(verifier.Options{Logger: slog.New(slog.DiscardHandler)})
	s.Eventually("all are forwarded", func() bool { return v.Stats().Forwarded >= int64(b.N) })
	b.StopTimer()
	v.Stop()
}
