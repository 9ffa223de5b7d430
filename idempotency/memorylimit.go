package idempotency

import (
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A memoryLimit bounds the memory of the messages that a Consumer holds (rule 10 of package bridge).
// A message without room loses its content and stays unacked. It goes back to its queue when half of
// the memory is free, and so comes again; in an ordered consumer the channel is closed then. Until
// then every later message loses its content too: otherwise small messages would keep the memory
// full, and overtake. A message that is larger than the limit is held alone. The messages of a
// handler that runs for long give their memory back, so a handler that hangs does not keep others out
// (workers.run).
type memoryLimit struct {
	most int

	mu   sync.Mutex
	held int
	back []amqp.Delivery // without content, to be handed back
}

// reserve reserves memory for a delivery, and returns a function that gives the memory back once.
// Without room it returns nil, and the caller drops the delivery's content.
func (m *memoryLimit) reserve(d amqp.Delivery) (release func()) {
	size := wire.Held(d)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.back) > 0 || m.held > 0 && m.held+size > m.most {
		m.back = append(m.back, amqp.Delivery{Acknowledger: d.Acknowledger, DeliveryTag: d.DeliveryTag})
		return nil
	}
	m.held += size
	return sync.OnceFunc(func() { m.release(size) })
}

func (m *memoryLimit) release(size int) {
	m.mu.Lock()
	m.held -= size
	var back []amqp.Delivery
	if m.held <= m.most/2 {
		back, m.back = m.back, nil
	}
	m.mu.Unlock()
	for _, d := range back {
		_ = d.Nack(false, true) // if its channel has ended, that has returned it
	}
}
