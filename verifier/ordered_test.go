package verifier

import (
	"errors"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
)

func orderedConsumer(maxBytes int) *consume.Consumer {
	return consume.New(consume.Config{Queue: "q", Prefetch: 100, MaxBytes: maxBytes, HandBack: time.Hour, Ordered: true})
}

// keyed returns a message with an order key that has come from a consumer of an ordered queue.
func keyed(c *consume.Consumer, key string, body []byte) *message {
	m := &message{unacked: c.Deliver(amqp.Delivery{Body: body})}
	m.unacked.CountMessages(1)
	m.staged.OrderKey, m.delivery.Body = key, body
	c.Order().Join(&m.place, key, m)
	return m
}

// Otherwise a dead queue that is full or missing would gather a copy for each channel that is left.
func TestDeadLettersOfAConsumerThatIsLeftAreForgotten(t *testing.T) {
	const room = 1000
	s := testSession(&resources{opts: Options{Topology: bridge.Topology{OrderedShards: 1}}})
	s.forwarder.Hold(bridge.Target{RoutingKey: "staging.dead"})
	left, next := orderedConsumer(room), orderedConsumer(room)
	var stays []*message
	for _, c := range []*consume.Consumer{left, next} {
		malformed := &message{unacked: &consume.Unacked{From: c}, delivery: amqp.Delivery{MessageId: "malformed"}}
		judged := keyed(c, "key", nil)
		judged.committed = true
		judged.place.Ready()
		for _, m := range []*message{malformed, judged} {
			m.why = deadReason{wire.DeadMalformed, ""}
			s.publish(m.toDead("staging.dead", time.Now()))
		}
		stays = []*message{malformed, judged}
	}
	left.Order().Close()
	s.limits.abandon()
	if a, b := len(left.Order().UnderWay()), len(next.Order().UnderWay()); a != 0 || b != 1 {
		t.Errorf("%d of the consumer that is left are on their way, %d of the next one", a, b)
	}
	if waiting := messagesOf(s.forwarder.RemoveHeld(anyPublication)); !slices.Equal(waiting, stays) {
		t.Errorf("%d wait for the dead queue, want the two of the next consumer", len(waiting))
	}
}

// While the broker blocks publishing, messages stay in the forwarder, but consumers are left.
func TestUnpublishedMessagesOfAConsumerThatIsLeftAreForgotten(t *testing.T) {
	s := testSession(&resources{opts: Options{Topology: bridge.Topology{OrderedShards: 1}}})
	var last *publication
	for _, leave := range []bool{true, true, false} {
		c := orderedConsumer(1000)
		m := keyed(c, "key", nil)
		m.place.Ready()
		last = m.toTarget()
		s.publish(last)
		if leave {
			c.Order().Close()
		}
		s.limits.abandon()
	}
	counted := s.forwarder.Moving().Value()
	if left := unsent(s); len(left) != 1 || left[0] != last || counted != 1 {
		t.Errorf("%d are to be published, %d on their way, want the last consumer's only", len(left), counted)
	}
}

// The key order keeps the message, since it holds its key.
func TestAStrandedMessageThatHoldsItsKeyKeepsNoBody(t *testing.T) {
	s := testSession(&resources{})
	c := orderedConsumer(1000)
	m := keyed(c, "key", make([]byte, 900))
	m.committed, m.staged.Message.Publishing.Body = true, m.delivery.Body
	keyed(c, "key", nil)
	held := c.Bytes()
	m.place.Ready()
	s.refused(m.toDead("staging.dead", time.Now()).asRecord(), errors.New("too large"))
	if m.delivery.Body != nil || m.staged.Message.Publishing.Body != nil {
		t.Error("it keeps its body")
	}
	if c.Bytes() > held-900 || c.Stranded() != 1 || len(c.Order().Waiting()) != 1 || len(c.Order().UnderWay()) != 0 {
		t.Errorf("%d bytes, %d stranded, %d keys held, %d on their way", c.Bytes(), c.Stranded(), len(c.Order().Waiting()), len(c.Order().UnderWay()))
	}
}

// While a key is held, one of several verifiers holds the messages of an ordered queue, and the
// queue looks empty to the others.
func TestOnlyTheActiveConsumerKnowsThatNoKeyIsHeld(t *testing.T) {
	active := orderedConsumer(1000)
	active.Deliver(amqp.Delivery{})
	for _, holdKeys := range []bool{false, true} {
		s := &sweeper{resources: &resources{opts: Options{HoldKeys: holdKeys}}}
		if got := s.heldElsewhere(orderedConsumer(1000)); got != holdKeys {
			t.Errorf("HoldKeys %t: messages may be held elsewhere: %t", holdKeys, got)
		}
		if s.heldElsewhere(active) || s.heldElsewhere(consume.New(consume.Config{Queue: "q", Prefetch: 1, MaxBytes: 1000, HandBack: time.Hour})) {
			t.Errorf("HoldKeys %t: messages of another queue may be held elsewhere", holdKeys)
		}
	}
}
