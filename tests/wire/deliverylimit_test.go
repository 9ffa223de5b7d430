package wire_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// A lost session counts as a failed delivery of every message that it held. RabbitMQ 4 allows a
// quorum queue 20 of them, unless its declaration has another limit, and removes a message that
// exceeds the limit.
func TestLostSessionsUseUpNoMessage(t *testing.T) {
	t.Parallel()
	const sessions = 30
	s := stage.New(t, stage.Postgres)
	ids := s.Commit(stage.To(s.Queue("target", nil), "body"))
	queues := []string{s.Topology.Queue, s.Topology.WaitingQueue(), s.Topology.DeadQueue()}
	// For comparison there is a queue declared without a limit, which dead-letters the message at
	// the default limit.
	given := s.Queue("given.up", nil)
	plain := s.Queue("plain", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": given})
	for _, queue := range []string{queues[1], queues[2], plain} {
		if err := publish(t, s.AMQP, bridge.Target{RoutingKey: queue}, amqp.Publishing{DeliveryMode: amqp.Persistent}); err != nil {
			t.Fatal(err)
		}
	}
	// lose takes the message of a queue and loses the connection.
	lose := func(queue string) {
		conn, err := amqp.Dial(s.AMQP)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		s.Eventually("the message is back in "+queue+", or given up", func() bool {
			_, ok, err := ch.Get(queue, false)
			if err != nil {
				t.Fatal(err)
			}
			return ok || queue == plain && s.Depth(given) == 1
		})
	}
	for range sessions {
		for _, queue := range append(queues, plain) {
			lose(queue)
		}
	}
	for _, queue := range queues {
		s.WaitDepth(queue, 1)
	}
	if limit := servertest.FeaturesOf(t, s.AMQP).DeliveryLimit; limit > 0 {
		s.WaitDepth(given, 1) // so the limit is real
	} else {
		s.WaitDepth(plain, 1)
	}

	s.Receive(s.Topology.WaitingQueue(), 1) // a message that belongs to no test
	s.Verify(verifier.Options{})
	if d := s.Receive("target", 1)[0]; d.MessageId != ids[0].String() || len(d.Headers) != 0 {
		t.Errorf("message %s with headers %v", d.MessageId, d.Headers)
	}
}

// Before RabbitMQ 4.3 a nack counts as a delivery. So a verifier that hands messages back needs a
// large limit.
func TestANackCountsTowardsTheDeliveryLimitBefore43(t *testing.T) {
	t.Parallel()
	const limit = 3
	s := stage.New(t, stage.Postgres)
	given := s.Queue("given.up", nil)
	queue := s.Queue("nacked", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": limit,
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": given})
	if err := publish(t, s.AMQP, bridge.Target{RoutingKey: queue}, amqp.Publishing{DeliveryMode: amqp.Persistent}); err != nil {
		t.Fatal(err)
	}
	deliveries, stop := s.Consume(queue)
	defer stop()
	givenUp, stopToo := s.Consume(given)
	defer stopToo()
	counts := servertest.FeaturesOf(t, s.AMQP).CountHeader == "x-delivery-count"
	for nacks := 0; ; nacks++ {
		select {
		case d := <-deliveries:
			if nacks == 3*limit {
				if counts {
					t.Errorf("after %d nacks it is still there", nacks)
				}
				return
			}
			if err := d.Nack(false, true); err != nil {
				t.Fatal(err)
			}
		case <-givenUp:
			if !counts || nacks != limit+1 {
				t.Errorf("it was given up after %d nacks", nacks)
			}
			return
		case <-within(t, patience).Done():
			t.Fatal("it does not come back, and is not given up")
		}
	}
}
