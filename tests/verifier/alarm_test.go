package verifier_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// While the broker takes nothing from anybody, a message waits to be published. That
// must keep no session from its end.
func TestAVerifierStopsDuringAnAlarm(t *testing.T) {
	t.Parallel()
	server := servertest.StartRabbitMQ(t, nil)
	s := stage.On(t, stage.Postgres, server.URL(), bridge.Topology{Queue: "staging"})
	queue := s.Queue("target", nil)
	v, err := verifier.New(s.Ledger, s.Broker, &verifier.Options{Topology: s.Topology, Logger: stage.Logger(t), Drain: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	s.Commit(stage.To(queue, "warms up"))
	s.Eventually("a message is forwarded", func() bool { return v.Stats().Forwarded == 1 })
	first, _ := s.Begin(stage.To(queue, "blocks the connection"))
	second, _ := s.Begin(stage.To(queue, "waits"))
	s.Eventually("both wait", func() bool { return v.State().Waiting == 2 })
	servertest.Alarm(t, server, true)
	if err := first.Commit(); err != nil {
		t.Fatal(err)
	}
	s.Eventually("the broker has blocked the publishing connection", func() bool {
		states, err := server.Ctl(t.Context(), "-q", "list_connections", "state")
		return err == nil && strings.Contains(states, "blocked")
	})
	if err := second.Commit(); err != nil {
		t.Fatal(err)
	}
	s.Eventually("both are judged", func() bool { return v.State().Waiting == 0 })
	stop()
	select {
	case <-ended: // with two messages that are not through
	case <-time.After(servertest.Patience):
		t.Error("it does not stop")
		servertest.Alarm(t, server, false)
		<-ended
	}
}
