package verifier

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

func orderedConsumer(maxBytes int) *consumer {
	c := newConsumer("q", 100, maxBytes, time.Hour, nil)
	c.keyOrder = newKeyOrder()
	return c
}

// A consumer that is left for lack of room must gain room by it, for at least the first message
// that has none.
func TestAConsumerIsLeftForLackOfRoomOnlyIfItGainsRoom(t *testing.T) {
	const room = 1000
	for name, second := range map[string]int{"both are too large": room * 3 / 4, "one is larger than the share": 2 * room} {
		c := orderedConsumer(room)
		for tag, size := range []int{room / 3, second} {
			c.receive(amqp.Delivery{DeliveryTag: uint64(tag + 1), Body: make([]byte, size)})
		}
		kept := c.arrived.Take(10)
		if len(kept) != 1 || !c.short() {
			t.Fatalf("%s: %d are kept", name, len(kept))
		}
		soon, late := c.opened.Add(exchangePause/2), c.opened.Add(time.Minute)
		if c.shouldReopen(late) {
			t.Errorf("%s: it is left while there is no room for the second", name)
		}
		c.countMessages(kept[0].unacked, 1)
		c.done(1, []*unackedDelivery{kept[0].unacked})
		if c.shouldReopen(soon) {
			t.Errorf("%s: it is left a moment after it was opened", name)
		}
		if !c.shouldReopen(late) {
			t.Errorf("%s: it is kept although there is room for the second", name)
		}
	}
}

// Otherwise a dead queue that is full or missing would gather a copy for each channel that is left.
func TestDeadLettersOfAConsumerThatIsLeftAreForgotten(t *testing.T) {
	const room = 1000
	s := &session{room: newWaitingRoom(1), shards: []*shard{nil}}
	s.forwarder = testForwarder(s)
	s.forwarder.Hold(bridge.Target{RoutingKey: "staging.dead"})
	left, next := orderedConsumer(room), orderedConsumer(room)
	var stays []*message
	for _, c := range []*consumer{left, next} {
		malformed := &message{unacked: &unackedDelivery{consumer: c}, delivery: amqp.Delivery{MessageId: "malformed"}}
		judged := keyed("key", 1)
		judged.unacked = &unackedDelivery{consumer: c}
		judged.committed = true
		c.keyOrder.join(judged)
		c.keyOrder.ready(judged)
		for _, m := range []*message{malformed, judged} {
			m.why = deathReason{wire.DeadMalformed, ""}
			s.publish(m.toDead("staging.dead", time.Now()))
		}
		stays = []*message{malformed, judged}
	}
	left.keyOrder.close()
	s.abandon()
	if a, b := len(left.keyOrder.underWay()), len(next.keyOrder.underWay()); a != 0 || b != 1 {
		t.Errorf("%d of the consumer that is left are on their way, %d of the next one", a, b)
	}
	if waiting := messagesOf(s.forwarder.RemoveHeld(anyPublication)); !slices.Equal(waiting, stays) {
		t.Errorf("%d wait for the dead queue, want the two of the next consumer", len(waiting))
	}
}

// While the broker blocks publishing, messages stay in the forwarder, but consumers are left.
func TestUnpublishedMessagesOfAConsumerThatIsLeftAreForgotten(t *testing.T) {
	s := &session{room: newWaitingRoom(1), shards: []*shard{nil}}
	s.forwarder = testForwarder(s)
	var last *publication
	for _, leave := range []bool{true, true, false} {
		c := orderedConsumer(1000)
		m := keyed("key", 1)
		m.unacked = &unackedDelivery{consumer: c}
		c.keyOrder.join(m)
		c.keyOrder.ready(m)
		last = m.toTarget()
		s.publish(last)
		if leave {
			c.keyOrder.close()
		}
		s.abandon()
	}
	counted := s.forwarder.Moving().Value()
	if left := unsent(s); len(left) != 1 || left[0] != last || counted != 1 {
		t.Errorf("%d are to be published, %d on their way, want the last consumer's only", len(left), counted)
	}
}

// Messages on their way are drained then, and no others follow.
func TestTheEndOfAVerifierWaitsForNoExchange(t *testing.T) {
	for name, age := range map[string]time.Duration{"while a consumer is used": 0, "while it is left": 2 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := &session{opts: Options{ConfirmTimeout: time.Hour}}
			s.forwarder = testForwarder(s)
			c := orderedConsumer(1000)
			first, second := keyed("key", 1), keyed("key", 2)
			c.keyOrder.join(first)
			c.keyOrder.join(second)
			c.keyOrder.ready(first)
			c.keyOrder.ready(second)
			c.acks.register(1)
			time.Sleep(age)
			ctx, stop := context.WithCancel(t.Context())
			used := make(chan error, 1)
			go func() { used <- s.unpackUntilReopen(ctx, c) }()
			time.Sleep(time.Minute)
			if age == 0 && c.keyOrder.isClosed() || age > 0 && !c.keyOrder.isClosed() {
				t.Errorf("%s: the line is closed: %t", name, c.keyOrder.isClosed())
			}
			stopped := time.Now()
			stop()
			if err := <-used; err != nil {
				t.Error(err)
			}
			if waited := time.Since(stopped); waited > 0 {
				t.Errorf("%s: the end took %v", name, waited)
			}
			if c.keyOrder.passed(first) != nil {
				t.Errorf("%s: the next one of the key got its turn", name)
			}
		})
	}
}

// A stuck target may take its time for each attempt; the other keys do not wait for it.
func TestAConsumerThatIsLeftWaitsForNoTrialAtAHeldTarget(t *testing.T) {
	for _, held := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &session{opts: Options{ConfirmTimeout: time.Minute}}
			s.forwarder = testForwarder(s)
			c := orderedConsumer(1000)
			m := keyed("key", 1)
			m.staged.RoutingKey = "stuck"
			c.keyOrder.join(m)
			c.keyOrder.ready(m)
			if held {
				s.forwarder.Hold(m.staged.Target())
			}
			c.acks.register(1)
			time.Sleep(2 * time.Hour)
			began := time.Now()
			if err := s.unpackUntilReopen(t.Context(), c); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); held != (took < time.Second) {
				t.Errorf("held %t: it took %v", held, took)
			}
		})
	}
}

// The key order keeps the message, since it holds its key.
func TestAStrandedMessageThatHoldsItsKeyKeepsNoBody(t *testing.T) {
	s := &session{log: slog.New(slog.DiscardHandler)}
	c := orderedConsumer(1000)
	c.receive(amqp.Delivery{DeliveryTag: 1, Body: make([]byte, 900)})
	a := c.arrived.Take(1)[0]
	m := keyed("key", 1)
	m.unacked, m.delivery.Body, m.committed = a.unacked, a.delivery.Body, true
	m.staged.Message.Publishing.Body = a.delivery.Body
	c.countMessages(a.unacked, 1)
	c.keyOrder.join(m)
	c.keyOrder.join(keyed("key", 2))
	c.keyOrder.ready(m)
	s.refused(m.toDead("staging.dead", time.Now()).asRecord(), errors.New("too large"))
	if m.delivery.Body != nil || m.staged.Message.Publishing.Body != nil {
		t.Error("it keeps its body")
	}
	if c.keptBytes() != 0 || c.stranded() != 1 || len(c.keyOrder.held("q")) != 1 || len(c.keyOrder.underWay()) != 0 {
		t.Errorf("%d bytes, %d stranded, %d keys held, %d on their way", c.keptBytes(), c.stranded(), len(c.keyOrder.held("q")), len(c.keyOrder.underWay()))
	}
}

// While a key is held, one of several verifiers holds the messages of an ordered queue, and the
// queue looks empty to the others.
func TestOnlyTheActiveConsumerKnowsThatNoKeyIsHeld(t *testing.T) {
	active := orderedConsumer(1000)
	active.receive(amqp.Delivery{DeliveryTag: 1})
	for _, holdKeys := range []bool{false, true} {
		s := &session{opts: Options{HoldKeys: holdKeys}}
		if got := s.heldElsewhere(orderedConsumer(1000)); got != holdKeys {
			t.Errorf("HoldKeys %t: messages may be held elsewhere: %t", holdKeys, got)
		}
		if s.heldElsewhere(active) || s.heldElsewhere(newConsumer("q", 1, 1000, time.Hour, nil)) {
			t.Errorf("HoldKeys %t: messages of another queue may be held elsewhere", holdKeys)
		}
	}
}
