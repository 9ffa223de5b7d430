package verifier

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A backlog of small messages fills all free room. The large message must get room nevertheless,
// even if it is larger than all of it.
func TestALargeMessageGetsRoomAmongSmallOnes(t *testing.T) {
	const small = 10_000
	for _, large := range []int{10 * small, 200 * small} {
		c := newConsumer("q", 3000, 100*small, time.Hour, nil)
		now := time.Now()
		var tag uint64
		deliver := func(size int, again bool) bool {
			tag++
			held := c.keptBytes()
			c.receive(amqp.Delivery{DeliveryTag: tag, Body: make([]byte, size), Redelivered: again})
			return c.keptBytes() > held
		}
		sizes := make(map[uint64]int)
		var kept []*unackedDelivery
		finish := func() {
			for _, a := range c.arrived.Take(1000) {
				c.countMessages(a.unacked, 1)
				kept = append(kept, a.unacked)
			}
			if len(kept) > 0 { // one message is done
				c.done(1, kept[:1])
				kept = kept[1:]
			}
		}
		for c.keptBytes() < 95*small {
			deliver(small, false)
		}
		deliver(large, false)
		sizes[tag] = large
		for round := 0; ; round++ {
			if round == 1000 {
				t.Fatalf("no room for %d bytes after %d rounds", large, round)
			}
			finish()
			deliver(small, false) // the backlog
			now = now.Add(restInterval)
			got := false
			for _, back := range c.takeResting(now) {
				deliver(small, false) // these come before the deliveries that were handed back
				size, was := sizes[back]
				if !was {
					size = small
				}
				in := deliver(size, true)
				if was && !in {
					sizes[tag] = size
				}
				got = got || was && in
			}
			if got {
				break
			}
		}
	}
}
