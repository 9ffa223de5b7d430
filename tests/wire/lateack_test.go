package wire_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// Whoever holds a message for longer than the broker's consumer timeout loses it to
// somebody else. What he says of it from then on must count for nothing, be the channel
// closed or only the consumer cancelled.
func TestALateAckTakesNothingFromAnother(t *testing.T) {
	t.Parallel()
	server := servertest.StartRabbitMQ(t, nil)
	if err := server.SetConsumerTimeout(t.Context(), 2*time.Second); err != nil {
		t.Fatal(err)
	}
	features := servertest.FeaturesOf(t, server.URL())
	args := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
	declare(t, server.URL(), "q", args)
	for range 2 {
		if err := publish(t, server.URL(), bridge.Target{RoutingKey: "q"}, amqp.Publishing{DeliveryMode: amqp.Persistent}); err != nil {
			t.Fatal(err)
		}
	}
	consume := func(ch *amqp.Channel) <-chan amqp.Delivery {
		deliveries, err := ch.Consume("q", "", false, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return deliveries
	}
	slow := channel(t, server.URL())
	cancels, closes := slow.NotifyCancel(make(chan string, 1)), slow.NotifyClose(make(chan *amqp.Error, 1))
	held := consume(slow)
	first, second := next(t, held), next(t, held)
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
	next(t, again)
	next(t, again)
	if err := first.Ack(false); features.TimeoutCancels && err != nil {
		t.Errorf("a late ack: %v", err)
	}
	_ = second.Ack(true)
	if features.TimeoutCancels {
		if err := slow.Qos(1, 0, false); err != nil { // answered after the acks
			t.Errorf("the channel after late acks: %v", err)
		}
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	back := func() int { return depth(t, server.URL(), "q") }
	servertest.Eventually(t, "both messages are back", func() bool { return back() == 2 },
		func() string { return fmt.Sprintf("; there are %d", back()) })
}
