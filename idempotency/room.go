package idempotency

import (
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A room bounds the memory of the messages that a Consumer holds (rule 10 of package bridge). A
// message without room loses its content and stays unacked. It goes back to its queue when half of
// the room is free, and so comes again; in an ordered consumer the channel is closed then. Until
// then every later message loses its content too: otherwise small messages would keep the room
// full, and overtake. A message that is larger than the room is held alone. The messages of a
// handler that runs for long give their room back, so a handler that hangs does not keep others out
// (Consumer.run).
type room struct {
	most int

	mu   sync.Mutex
	held int
	back []amqp.Delivery // without content, to be handed back
}

// take reserves room for a delivery, and returns a function that gives the room back once. Without
// room it returns nil, and the caller drops the delivery.
func (r *room) take(d amqp.Delivery) (leave func()) {
	size := wire.Held(d)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.back) > 0 || r.held > 0 && r.held+size > r.most {
		r.back = append(r.back, amqp.Delivery{Acknowledger: d.Acknowledger, DeliveryTag: d.DeliveryTag})
		return nil
	}
	r.held += size
	return sync.OnceFunc(func() { r.leave(size) })
}

func (r *room) leave(size int) {
	r.mu.Lock()
	r.held -= size
	var back []amqp.Delivery
	if r.held <= r.most/2 {
		back, r.back = r.back, nil
	}
	r.mu.Unlock()
	for _, d := range back {
		_ = d.Nack(false, true) // if its channel has ended, that has returned it
	}
}
