package wire_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// Starting a broker costs the most, so all tests that change, block or end a server share one.
// Each leaves it in the state that the next one needs.
func TestABrokerThatIsBlockedOrEnds(t *testing.T) {
	t.Parallel()
	server := servertest.StartRabbitMQ(t, nil)
	declare(t, server.URL(), "quorum", amqp.Table{"x-queue-type": "quorum"})
	declare(t, server.URL(), "target", nil)
	if err := killed.Declare(t.Context(), dial(t, server.URL(), nil)); err != nil {
		t.Fatal(err)
	}
	t.Run("impatient, lets no late ack take from another", func(t *testing.T) { testLateAck(t, server) })
	t.Run("blocked, says so, and all publishers wait", func(t *testing.T) { testBlocked(t, server) })
	t.Run("killed, is found again with all that was confirmed", func(t *testing.T) { testKilledIsFoundAgain(t, server, "quorum") })
}

// A consumer that holds a message for longer than the broker's consumer timeout loses it to
// another consumer. Its later acks must have no effect, whether the channel was closed or only
// the consumer cancelled.
func testLateAck(t *testing.T, server *servers.RabbitMQ) {
	if err := server.SetConsumerTimeout(t.Context(), 2*time.Second); err != nil {
		t.Fatal(err)
	}
	features := servertest.FeaturesOf(t, server.URL())
	args := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
	declare(t, server.URL(), "held", args)
	for range 2 {
		if err := publish(t, server.URL(), bridge.Target{RoutingKey: "held"}, amqp.Publishing{DeliveryMode: amqp.Persistent}); err != nil {
			t.Fatal(err)
		}
	}
	consume := func(ch *amqp.Channel) <-chan amqp.Delivery {
		deliveries, err := ch.Consume("held", "", false, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return deliveries
	}
	slow := channel(t, server.URL())
	cancels, closes := slow.NotifyCancel(make(chan string, 1)), slow.NotifyClose(make(chan *amqp.Error, 1))
	held := consume(slow)
	first, second := servertest.Next(t, "a message", held), servertest.Next(t, "a message", held)
	select {
	case <-cancels:
		if !features.TimeoutCancels {
			t.Error("the consumer was cancelled, not the channel closed")
		}
	case err := <-closes:
		if features.TimeoutCancels || err == nil || err.Code != amqp.PreconditionFailed {
			t.Errorf("the channel was closed: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the timeout does not strike")
	}

	other := channel(t, server.URL())
	again := consume(other)
	servertest.Next(t, "one comes again", again)
	servertest.Next(t, "the other delivery comes too", again)
	if err := first.Ack(false); features.TimeoutCancels && err != nil {
		t.Errorf("a late ack: %v", err)
	}
	_ = second.Ack(true)
	if features.TimeoutCancels {
		if err := slow.Qos(1, 0, false); err != nil { // answered after the acks
			t.Errorf("the channel after late acks: %v", err)
		}
	}
	// The late acks may revive a cancelled consumer, which then gets messages that no program
	// reads (seen on 4.3.6; rabbitmq-server, issue 17317). It ends with its channel.
	_ = slow.Close()
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	back := func() int { return depth(t, server.URL(), "held") }
	servertest.Eventually(t, "both messages are back", func() bool { return back() == 2 },
		func() string {
			text := fmt.Sprintf("; %d are ready", back())
			for _, item := range []string{"messages", "messages_unacknowledged", "consumers"} {
				told, err := server.Queues(context.Background(), "/", item)
				text += fmt.Sprintf("; %s %v, error %v", item, told, err)
			}
			return text
		})
}

func testBlocked(t *testing.T, server *servers.RabbitMQ) {
	declare(t, server.URL(), "q", nil)
	broker := dial(t, server.URL(), nil)
	publishes(t, broker, "q")
	servertest.Alarm(t, server, true)
	ctx := within(t, patience)
	const publishers = 2
	waiting := make(chan error, publishers)
	publish := func() { waiting <- broker.Publish(ctx, outgoing("q", 1)) }
	go publish() // this one is sent; then the broker reports that it reads no more
	servertest.Eventually(t, "the broker says that it is blocked", func() bool {
		// The broker reports this only to publishers, and the alarm may reach the connection
		// after the first message.
		_ = broker.Publish(within(t, 100*time.Millisecond), outgoing("q", 1))
		return broker.Blocked() != ""
	})
	messages := outgoing("q", 1)
	err := fails(t, broker, messages, 100*time.Millisecond, bridge.ErrBlocked)
	if errors.Is(err, bridge.ErrUnconfirmed) {
		t.Errorf("the next message was sent: %v", err)
	}
	blames(t, err, messages[0])
	contains(t, err, "memory") // the broker's reason
	go publish()
	servertest.Alarm(t, server, false)
	for range publishers {
		if err := servertest.Next(t, "the publisher returns", waiting); err != nil {
			t.Errorf("after the alarm: %v", err)
		}
	}
}

// killed is the topology of the sender whose broker is killed.
var killed = bridge.Topology{Queue: "staging", Classic: true}

// Confirmed messages are there after the restart. A staged message is there even if the caller
// wanted it transient.
func testKilledIsFoundAgain(t *testing.T, server *servers.RabbitMQ, queue string) {
	s := stage.On(t, stage.SQLite, server.URL(), killed)
	m := stage.To(s.Queue("target", nil), "body")
	m.Publishing.DeliveryMode = amqp.Transient
	to, p := unescaped(t, s, m)
	if err := publish(t, s.AMQP, to, p); err != nil {
		t.Fatal(err)
	}
	ids := s.Commit(m)
	if n := s.Depth("staging"); n != 2 {
		t.Fatalf("%d messages are staged", n)
	}
	broker := dial(t, server.URL(), nil)
	if err := broker.Publish(within(t, patience), outgoing(queue, 1000)); err != nil {
		t.Fatal(err)
	}

	if err := server.SyncDeclarations(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	ctx := within(t, time.Second)
	err := returns(t, "Publish", func() error { return broker.Publish(ctx, outgoing(queue, 1)) })
	if !errors.Is(err, bridge.ErrUnconfirmed) && !errors.Is(err, bridge.ErrUnavailable) {
		t.Errorf("published without a broker: %v", err)
	}
	fails(t, broker, outgoing(queue, 1), 100*time.Millisecond, bridge.ErrUnavailable)
	waiting := make(chan error, 1)
	ctx = within(t, patience)
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
	// The message without the escape is lost.
	if n := depth(t, s.AMQP, "staging"); n != 1 {
		t.Errorf("%d messages are staged still", n)
	}
	s.Channel = channel(t, s.AMQP)
	s.Verify(verifier.Options{})
	if d := s.Receive("target", 1)[0]; d.MessageId != ids[0].String() || d.DeliveryMode != amqp.Persistent {
		t.Errorf("message %s with delivery mode %d", d.MessageId, d.DeliveryMode)
	}
}
