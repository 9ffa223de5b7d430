package consume

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func orderedConsumer(maxBytes int) *Consumer {
	return New(Config{Queue: "q", Prefetch: 100, MaxBytes: maxBytes, HandBack: time.Hour, Ordered: true})
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
		if len(kept) != 1 || !c.Short() {
			t.Fatalf("%s: %d are kept", name, len(kept))
		}
		soon, late := c.opened.Add(reopenPause/2), c.opened.Add(time.Minute)
		if c.shouldReopen(late) {
			t.Errorf("%s: it is left while there is no room for the second", name)
		}
		kept[0].unacked.CountMessages(1)
		c.Done(1, []*Unacked{kept[0].unacked})
		if c.shouldReopen(soon) {
			t.Errorf("%s: it is left a moment after it was opened", name)
		}
		if !c.shouldReopen(late) {
			t.Errorf("%s: it is kept although there is room for the second", name)
		}
	}
}

// Messages on their way are drained then, and no others follow.
func TestTheEndOfAVerifierWaitsForNoExchange(t *testing.T) {
	for name, age := range map[string]time.Duration{"while a consumer is used": 0, "while it is left": 2 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			o := &OrderedQueue{OrderedQueueConfig: OrderedQueueConfig{FinishWait: time.Hour, IsHeld: func(any) bool { return false }}}
			c := orderedConsumer(1000)
			first, second := joined(c.order, "key", 1), joined(c.order, "key", 2)
			first.Ready()
			second.Ready()
			c.acks.register(1)
			time.Sleep(age)
			ctx, stop := context.WithCancel(t.Context())
			used := make(chan error, 1)
			go func() { used <- o.unpackUntilReopen(ctx, c) }()
			time.Sleep(time.Minute)
			if age == 0 && c.order.IsClosed() || age > 0 && !c.order.IsClosed() {
				t.Errorf("%s: the order is closed: %t", name, c.order.IsClosed())
			}
			stopped := time.Now()
			stop()
			if err := <-used; err != nil {
				t.Error(err)
			}
			if waited := time.Since(stopped); waited > 0 {
				t.Errorf("%s: the end took %v", name, waited)
			}
			if first.Passed() != nil {
				t.Errorf("%s: the next one of the key got its turn", name)
			}
		})
	}
}

// A stuck target may take its time for each attempt; the other keys do not wait for it.
func TestAConsumerThatIsLeftWaitsForNoTrialAtAHeldTarget(t *testing.T) {
	for _, held := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := orderedConsumer(1000)
			m := joined(c.order, "key", 1)
			o := &OrderedQueue{OrderedQueueConfig: OrderedQueueConfig{FinishWait: time.Minute, IsHeld: func(of any) bool { return held && of == m }}}
			m.Ready()
			c.acks.register(1)
			time.Sleep(2 * time.Hour)
			began := time.Now()
			if err := o.unpackUntilReopen(t.Context(), c); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); held != (took < time.Second) {
				t.Errorf("held %t: it took %v", held, took)
			}
		})
	}
}
