package idempotency

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// A nacker records which deliveries went back.
type nacker struct{ back []uint64 }

func (*nacker) Ack(uint64, bool) error    { return nil }
func (*nacker) Reject(uint64, bool) error { return nil }
func (n *nacker) Nack(tag uint64, _, requeue bool) error {
	if requeue {
		n.back = append(n.back, tag)
	}
	return nil
}

func TestARoomHoldsItsBytesAndHandsBackTheRest(t *testing.T) {
	const most = 100 << 10
	r, n := &room{most: most}, &nacker{}
	delivery := func(tag uint64, bytes int) amqp.Delivery {
		return amqp.Delivery{Acknowledger: n, DeliveryTag: tag, Body: make([]byte, bytes)}
	}
	large := r.take(delivery(1, 2*most)) // alone it may exceed the room
	if large == nil || r.take(delivery(2, 1)) != nil {
		t.Fatal("a large message is not held alone")
	}
	large()
	if !slices.Equal(n.back, []uint64{2}) {
		t.Fatalf("back went %v", n.back)
	}
	first, second := r.take(delivery(3, most/4)), r.take(delivery(4, most/2))
	if first == nil || second == nil || r.take(delivery(5, most/2)) != nil || r.take(delivery(6, 1)) != nil {
		t.Fatal("the room does not hold its bytes, or a small message overtakes a large one")
	}
	for _, d := range r.back {
		if d.Body != nil {
			t.Error("a message without room keeps its content")
		}
	}
	first()
	if len(n.back) != 1 {
		t.Errorf("back went %v, although more than half of the room is taken", n.back)
	}
	second()
	if !slices.Equal(n.back, []uint64{2, 5, 6}) || r.held != 0 {
		t.Errorf("back went %v; held %d", n.back, r.held)
	}
	if leave := r.take(delivery(5, most/2)); leave == nil {
		t.Error("there is room again, and it is not taken")
	}
}

// A handler that hangs with most of the room keeps later messages out for a minute, and no longer.
func TestAHandlerThatHangsGivesItsRoomBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, handled := make(chan struct{}), make(chan string, 2)
		c, err := NewConsumer(new(bridge.Broker), "q", func(_ context.Context, d amqp.Delivery) error {
			if d.MessageId == "hangs" {
				<-release
			}
			handled <- d.MessageId
			return nil
		}, &ConsumerOptions{Workers: 2, MaxBytes: 4000, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		session := &consumerSession{open: newOpenDeliveries(nil, 1, 1), handling: t.Context(), Session: engine.Session{Ordered: true}} // without a channel: a requeue ends the session
		session.Stopping, session.end = context.WithCancelCause(t.Context())
		begun := time.Now()
		c.take(session, amqp.Delivery{DeliveryTag: 1, MessageId: "hangs", Body: make([]byte, 3000)})
		c.take(session, amqp.Delivery{DeliveryTag: 2, MessageId: "waits", Body: make([]byte, 3000)})
		<-session.Stopping.Done() // the message without room goes back to the queue
		if waited := time.Since(begun); waited != longRun {
			t.Errorf("it waited for %v, must be %v", waited, longRun)
		}
		if leave := c.room.take(amqp.Delivery{Body: make([]byte, 3000)}); leave == nil {
			t.Error("it has no room when it comes again")
		} else {
			leave()
		}
		close(release)
		if id := <-handled; id != "hangs" {
			t.Errorf("%s is handled", id)
		}
		synctest.Wait()
		if c.room.held != 0 {
			t.Errorf("%d bytes are held in the end", c.room.held)
		}
	})
}
