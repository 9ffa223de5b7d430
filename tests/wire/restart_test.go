package wire_test

import (
	"context"
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// A start costs the most of all, so that all that blocks or ends a server share one; each
// leaves it to the next as that needs it.
func TestABrokerThatIsBlockedOrEnds(t *testing.T) {
	t.Parallel()
	server := servertest.StartRabbitMQ(t, nil)
	// A quorum queue that is killed within its first moments stays without a leader
	// (3.10): the restart makes it old enough.
	declare(t, server.URL(), "quorum", amqp.Table{"x-queue-type": "quorum"})
	t.Run("blocked, is an error within the deadline", func(t *testing.T) { testBlocked(t, server) })
	t.Run("restarted, has what is staged as transient", func(t *testing.T) { testTransientSurvives(t, server) })
	t.Run("killed, is found again with all that was confirmed", func(t *testing.T) { testKilledIsFoundAgain(t, server, "quorum") })
	t.Run("killed for good, keeps no Close waiting", func(t *testing.T) { testCloseWithoutBroker(t, server) })
}

func testBlocked(t *testing.T, server *servers.RabbitMQ) {
	vhost := server.URL()
	declare(t, vhost, "q", nil)
	broker := dial(t, vhost, nil)
	publishes(t, broker, "q")
	large := dial(t, vhost, nil)
	publishes(t, large, "q")

	servertest.Alarm(t, server, true)
	const blocked = 3 * time.Second // time enough for the broker's word
	// The first message is sent; then the broker says that it reads no more.
	messages := outgoing("q", 1)
	err := fails(t, broker, messages, blocked, bridge.ErrBlocked)
	if !errors.Is(err, bridge.ErrUnconfirmed) {
		t.Errorf("the first message was sent: %v", err)
	}
	blames(t, err, messages[0])
	contains(t, err, "memory") // the broker's reason
	// The next is not sent any more.
	messages = outgoing("q", 1)
	err = fails(t, broker, messages, blocked, bridge.ErrBlocked)
	if errors.Is(err, bridge.ErrUnconfirmed) {
		t.Errorf("the second message was sent: %v", err)
	}
	blames(t, err, messages[0])
	if !bridge.Retryable(err) {
		t.Error("is not retryable")
	}
	// So much that it does not fit into the buffers on the way.
	messages = outgoing("q", 5)
	for i := range messages {
		messages[i].Body = make([]byte, 16<<20)
	}
	fails(t, large, messages, 2*blocked, bridge.ErrBlocked)

	waiting := make(chan error)
	ctx := within(t, patience)
	go func() { waiting <- broker.Publish(ctx, outgoing("q", 1)) }()
	servertest.Alarm(t, server, false)
	if err := servertest.Next(t, "the publisher returns", waiting); err != nil {
		t.Errorf("after the alarm: %v", err)
	}
	publishes(t, large, "q")
}

func testTransientSurvives(t *testing.T, server *servers.RabbitMQ) {
	s := stage.On(t, stage.SQLite, server.URL(), bridge.Topology{Queue: "staging", Classic: true})
	m := stage.To(s.Queue("target", nil), "body")
	m.Publishing.DeliveryMode = amqp.Transient
	to, p := unescaped(t, s, m)
	if err := publish(t, s.AMQP, to, p); err != nil {
		t.Fatal(err)
	}
	ids := s.Commit(m)
	if n := depth(t, s.AMQP, "staging"); n != 2 {
		t.Fatalf("%d messages are staged", n)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Without the escape it is gone.
	if n := depth(t, s.AMQP, "staging"); n != 1 {
		t.Errorf("%d messages are left", n)
	}
	s.Channel = channel(t, s.AMQP)
	s.Verify(verifier.Options{})
	if d := s.Receive("target", 1)[0]; d.MessageId != ids[0].String() || d.DeliveryMode != amqp.Persistent {
		t.Errorf("message %s with delivery mode %d", d.MessageId, d.DeliveryMode)
	}
}

func testKilledIsFoundAgain(t *testing.T, server *servers.RabbitMQ, queue string) {
	broker := dial(t, server.URL(), nil)
	if err := broker.Publish(within(t, patience), outgoing(queue, 1000)); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	err := broker.Publish(within(t, time.Second), outgoing(queue, 1))
	if !errors.Is(err, bridge.ErrUnconfirmed) && !errors.Is(err, bridge.ErrUnavailable) {
		t.Errorf("published without a broker: %v", err)
	}
	waiting := make(chan error)
	ctx := within(t, patience)
	fails(t, broker, outgoing(queue, 1), 100*time.Millisecond, bridge.ErrUnavailable)
	go func() { waiting <- broker.Publish(ctx, outgoing(queue, 1)) }()
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := servertest.Next(t, "the publisher returns", waiting); err != nil {
		t.Fatalf("after the restart: %v", err)
	}
	if n := depth(t, server.URL(), queue); n < 1001 {
		t.Errorf("%d messages in the queue, 1001 were confirmed", n)
	}
}

func testCloseWithoutBroker(t *testing.T, server *servers.RabbitMQ) {
	broker := dial(t, server.URL(), nil)
	unused := dial(t, server.URL(), nil)
	server.Kill()
	// What hits the dying connection is unconfirmed; after that there is none.
	for errors.Is(broker.Publish(within(t, 100*time.Millisecond), outgoing("q", 1)), bridge.ErrUnconfirmed) {
	}
	fails(t, broker, outgoing("q", 1), 100*time.Millisecond, bridge.ErrUnavailable)
	ctx := within(t, patience)
	result := make(chan error)
	go func() { result <- broker.Publish(ctx, outgoing("q", 1)) }()
	broker.Close()
	err := servertest.Next(t, "the publisher returns", result)
	if !errors.Is(err, bridge.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	unused.Close() // never had a connection
	fails(t, unused, outgoing("q", 1), patience, bridge.ErrUnavailable)
}
