package consume

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func newConsumer(maxBytes int) *Consumer {
	return New(Config{Queue: "q", Prefetch: 3000, MaxBytes: maxBytes, HandBack: time.Hour})
}

// A backlog of small messages fills all free room. The large message must get room nevertheless,
// even if it is larger than all of it.
func TestALargeMessageGetsRoomAmongSmallOnes(t *testing.T) {
	const small = 10_000
	for _, large := range []int{10 * small, 200 * small} {
		c := newConsumer(100 * small)
		now := time.Now()
		var tag uint64
		deliver := func(size int, again bool) bool {
			tag++
			held := c.Bytes()
			c.receive(amqp.Delivery{DeliveryTag: tag, Body: make([]byte, size), Redelivered: again})
			return c.Bytes() > held
		}
		sizes := make(map[uint64]int)
		var kept []*Unacked
		finish := func() {
			for _, a := range c.arrived.Take(1000) {
				a.unacked.CountMessages(1)
				kept = append(kept, a.unacked)
			}
			if len(kept) > 0 { // one message is done
				c.Done(1, kept[:1])
				kept = kept[1:]
			}
		}
		for c.Bytes() < 95*small {
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
