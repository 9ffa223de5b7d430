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

func TestAMemoryLimitHoldsItsBytesAndHandsBackTheRest(t *testing.T) {
	const most = 100 << 10
	m, n := &memoryLimit{most: most}, &nacker{}
	delivery := func(tag uint64, bytes int) amqp.Delivery {
		return amqp.Delivery{Acknowledger: n, DeliveryTag: tag, Body: make([]byte, bytes)}
	}
	large := m.reserve(delivery(1, 2*most)) // alone it may exceed the limit
	if large == nil || m.reserve(delivery(2, 1)) != nil {
		t.Fatal("a large message is not held alone")
	}
	large()
	if !slices.Equal(n.back, []uint64{2}) {
		t.Fatalf("back went %v", n.back)
	}
	first, second := m.reserve(delivery(3, most/4)), m.reserve(delivery(4, most/2))
	if first == nil || second == nil || m.reserve(delivery(5, most/2)) != nil || m.reserve(delivery(6, 1)) != nil {
		t.Fatal("the limit does not hold its bytes, or a small message overtakes a large one")
	}
	for _, d := range m.back {
		if d.Body != nil {
			t.Error("a message without room keeps its content")
		}
	}
	first()
	if len(n.back) != 1 {
		t.Errorf("back went %v, although more than half of the memory is taken", n.back)
	}
	second()
	if !slices.Equal(n.back, []uint64{2, 5, 6}) || m.held != 0 {
		t.Errorf("back went %v; held %d", n.back, m.held)
	}
	if release := m.reserve(delivery(5, most/2)); release == nil {
		t.Error("there is room again, and it is not taken")
	}
}

// A handler that hangs with most of the memory keeps later messages out for a minute, and no longer.
func TestAHandlerThatHangsGivesItsMemoryBack(t *testing.T) {
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
		c.workers.take(session, amqp.Delivery{DeliveryTag: 1, MessageId: "hangs", Body: make([]byte, 3000)})
		c.workers.take(session, amqp.Delivery{DeliveryTag: 2, MessageId: "waits", Body: make([]byte, 3000)})
		<-session.Stopping.Done() // the message without room goes back to the queue
		if waited := time.Since(begun); waited != longRun {
			t.Errorf("it waited for %v, must be %v", waited, longRun)
		}
		if free := c.workers.memory.reserve(amqp.Delivery{Body: make([]byte, 3000)}); free == nil {
			t.Error("it has no room when it comes again")
		} else {
			free()
		}
		close(release)
		if id := <-handled; id != "hangs" {
			t.Errorf("%s is handled", id)
		}
		synctest.Wait()
		if c.workers.memory.held != 0 {
			t.Errorf("%d bytes are held in the end", c.workers.memory.held)
		}
	})
}
