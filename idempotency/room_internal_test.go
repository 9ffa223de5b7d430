package idempotency

import (
	"slices"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A nacker notes which deliveries went back.
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
