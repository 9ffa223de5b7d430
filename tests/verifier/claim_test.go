package verifier_test

import (
	"errors"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// Verifiers of two databases on one staging queue would dead-letter each other's messages. The
// second one refuses to start while the first runs.
func TestAQueueOfAnotherLedgersVerifiersIsRefused(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	topology := bridge.Topology{Queue: "staging"}
	s, other := stage.On(t, stage.Postgres, vhost, topology), stage.On(t, stage.Postgres, vhost, topology)
	first, second := s.Verify(verifier.Options{}), s.Verify(verifier.Options{}) // of one ledger

	v, err := verifier.New(other.Ledger, other.Broker, &verifier.Options{Topology: topology, Logger: stage.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		ended := make(chan error, 1)
		go func() { ended <- v.Run(t.Context()) }()
		s.Eventually("it refuses, or begins", func() bool { return len(ended) > 0 || v.Stats().Sessions > 0 })
		if v.Stats().Sessions > 0 {
			t.Fatal("it has begun")
		}
		err := <-ended
		// The broker truncates its text, which contains the other ledger only if virtual host and
		// queue have short names.
		if !errors.Is(err, bridge.ErrOtherLedger) || !strings.Contains(err.Error(), other.Ledger.Identity().String()) {
			t.Errorf("Run returned %v", err)
		}
	}
	refused()
	first.Stop()
	refused() // the second one holds the queue
	// The ledger queue needs no messages. If a client publishes some, no verifier stops.
	queue := s.Queue("target", nil)
	for range 100 {
		if err := s.Channel.PublishWithContext(t.Context(), "", topology.LedgerQueue(), false, false, amqp.Publishing{Body: make([]byte, 100_000)}); err != nil {
			t.Fatal(err)
		}
	}
	expectAll(t, s, queue, goodBatch(s, queue, 20))
	second.Stop()
	other.Verify(verifier.Options{}).Stop()
}
