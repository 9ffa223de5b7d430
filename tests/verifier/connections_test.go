package verifier_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// limited gives the stage's verifiers a login of their own with a limit of connections.
func limited(t *testing.T, s *stage.Stage, connections int) {
	t.Helper()
	login := servertest.User(t, s.AMQP, ".*", ".*", ".*")
	servertest.LimitConnections(t, login, "user", connections)
	s.Broker = dial(t, login)
}

// behindValve gives the stage's verifiers a login of their own, and connections that the test can
// cut.
func behindValve(t *testing.T, s *stage.Stage) (login string, valve *servertest.Valve) {
	t.Helper()
	login = servertest.User(t, s.AMQP, ".*", ".*", ".*")
	valve, through := servertest.Through(t, login)
	s.Broker = dial(t, through)
	return login, valve
}

// The verifier needs two connections, and a third for messages that it publishes alone. With two
// or three it goes on: no session ends, and the messages for other targets are forwarded.
func TestALimitOfConnectionsEndsNoSession(t *testing.T) {
	t.Parallel()
	for _, connections := range []int{2, 3} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, stage.Postgres)
			queue := s.Queue("target", nil)
			for i := range 20 {
				s.Commit(bridge.Message{Exchange: "missing", RoutingKey: fmt.Sprint(i)})
			}
			ids := goodBatch(s, queue, 5)
			limited(t, s, connections)
			v := s.Verify(verifier.Options{Unroutable: time.Second})
			expectAll(t, s, queue, ids)
			s.Eventually("the others are dead letters", func() bool { return v.Stats().DeadLettered == 20 })
			expectAll(t, s, queue, goodBatch(s, queue, 5))
			if n := v.Stats().Sessions; n != 1 {
				t.Errorf("%d sessions", n)
			}
		})
	}
}

// RabbitMQ counts a connection for a moment after it is closed. So a restarted verifier may reach
// the limit because of connections that it has closed itself.
func TestAStartWaitsForTheBrokersLimitOfConnections(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	login := servertest.User(t, s.AMQP, ".*", ".*", ".*")
	s.Broker = dial(t, login)
	servertest.LimitConnections(t, login, "user", 1)
	refused := make(chan struct{}, 1000)
	v, err := verifier.New(s.Judging(), s.Broker, &verifier.Options{Topology: s.Topology,
		Logger: slog.New(logSignal{slog.DiscardHandler, "no session", refused})})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	for range 2 {
		select {
		case err := <-ended:
			t.Fatalf("Run returned %v", err)
		case <-refused:
		case <-time.After(stage.Patience):
			t.Fatal("the start is not refused")
		}
	}
	servertest.LimitConnections(t, login, "user", 2)
	expectAll(t, s, queue, goodBatch(s, queue, 5))
	stop()
	if err := servertest.Next(t, "the verifier ends", ended); err != nil {
		t.Errorf("Run returned %v", err)
	}
}

// Each trial of a target that does not confirm takes a connection. If none is left, the trials
// wait, and the other targets go on.
func TestALimitOfConnectionsKeepsNoTargetWaitingForAStuckOne(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	var stuck []string
	for i := range 6 {
		stuck = append(stuck, s.Queue(fmt.Sprint("stuck-", i), amqp.Table{"x-queue-type": "quorum"}))
	}
	limited(t, s, 3)
	v := s.Verify(verifier.Options{ConfirmTimeout: 5 * time.Second, Drain: time.Second})
	ids := map[string]map[string]bool{}
	for _, name := range stuck {
		s.Commit(stage.To(name, "first"))
		s.Receive(name, 1)
	}
	resume := servertest.SuspendQueues(t, s.AMQP, stuck...)
	for range 3 {
		for _, name := range stuck {
			if ids[name] == nil {
				ids[name] = map[string]bool{}
			}
			add(ids[name], s.Commit(stage.To(name, "x"), stage.To(name, "y"))...)
		}
		expectAll(t, s, queue, goodBatch(s, queue, 20))
	}
	s.Eventually("all of them are held", func() bool {
		expectAll(t, s, queue, goodBatch(s, queue, 5)) // they fall behind others
		return len(v.State().Targets) == len(stuck)
	})
	resume()
	for _, name := range stuck {
		expectAll(t, s, name, ids[name])
	}
	if n := v.Stats(); n.Sessions != 1 || n.DeadLettered != 0 {
		t.Errorf("stats %+v", n)
	}
}

// A connection that only publishes can be replaced: no delivered message comes again.
func TestALostPublishingConnectionEndsNoSession(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	_, valve := behindValve(t, s)
	v := s.Verify(verifier.Options{})
	expectAll(t, s, queue, goodBatch(s, queue, 10))
	valve.CutLast() // the publishing connection is opened last
	for round := range 5 {
		queue := s.Queue(fmt.Sprintf("target-%d", round), nil) // copies of the last round may still come
		expectAll(t, s, queue, goodBatch(s, queue, 10))
	}
	if n := v.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// Without a publishing connection no message can be set aside. The messages are handed back in
// time, the session lives, and its state reports that nothing can be published.
func TestMessagesGoBackWhileNothingCanBePublished(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	login, valve := behindValve(t, s)
	back := make(chan struct{}, 1000)
	v := s.Verify(verifier.Options{HandBack: time.Second, Patience: time.Second, ConfirmTimeout: 2 * time.Second,
		Logger: slog.New(logSignal{slog.DiscardHandler, "messages requeued", back})})
	expectAll(t, s, queue, goodBatch(s, queue, 10))
	servertest.LimitConnections(t, login, "user", 1)
	valve.CutLast() // the publishing connection is opened last
	ids := goodBatch(s, queue, 20)
	for range 3 {
		servertest.Next(t, "messages go back", back)
	}
	if v.State().Blocked == "" {
		t.Error("the state has no reason why nothing is published")
	}
	servertest.LimitConnections(t, login, "user", 3)
	expectAll(t, s, queue, ids)
	s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	if n := v.Stats(); n.Sessions != 1 || v.State().Blocked != "" {
		t.Errorf("stats %+v, blocked %q", n, v.State().Blocked)
	}
}

// The second session already holds the first one's unroutable target, so that its main channel
// stays open.
func TestTheNextSessionKnowsTheCulprit(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	before, after := s.Queue("before", nil), s.Queue("after", nil)
	_, valve := behindValve(t, s)
	closed := make(chan struct{}, 1000)
	v := s.Verify(verifier.Options{Unroutable: time.Hour, Patience: time.Hour,
		Logger: slog.New(logSignal{slog.DiscardHandler, "publishing channel closed", closed})})
	s.Commit(bridge.Message{Exchange: "missing", RoutingKey: "k"})
	held := func() bool {
		held := v.State().Targets
		return len(held) == 1 && held[0].Messages == 1
	}
	s.Eventually("the target is held", held)
	since := v.State().Targets[0].Since
	expectAll(t, s, before, goodBatch(s, before, 20)) // the next messages find the channel closed
	valve.Cut()
	s.Eventually("there is another session", func() bool { return v.Stats().Sessions == 2 })
	s.Eventually("the target is held", held)
	expectAll(t, s, after, goodBatch(s, after, 20))
	if n := len(closed); n != 1 {
		t.Errorf("%d times a channel was closed", n)
	}
	if again := v.State().Targets[0].Since; !again.Equal(since) {
		t.Errorf("held since %v, then since %v", since, again)
	}
}

// While a transaction is open its message holds up no other, even if the verifier holds only one
// message and Patience does not end the wait.
func TestAPrefetchOfOneIsNotHeldUpByAnOpenTransaction(t *testing.T) {
	t.Parallel()
	for _, prefetch := range []int{1, 2} {
		t.Run(fmt.Sprint(prefetch), func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, stage.Postgres)
			queue := s.Queue("target", nil)
			v := s.Verify(verifier.Options{Prefetch: prefetch, Patience: time.Hour})
			open, _ := s.Begin(stage.To(queue, "open"))
			more, _ := s.Begin(stage.To(queue, "open too"))
			expectAll(t, s, queue, goodBatch(s, queue, 20))
			for _, tx := range []interface{ Commit() error }{open, more} {
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			s.Receive(queue, 2)
			if n := v.Stats().Sessions; n != 1 {
				t.Errorf("%d sessions", n)
			}
		})
	}
}
