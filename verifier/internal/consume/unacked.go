package consume

import (
	"slices"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// An Unacked is an unacked delivery: a message, or a group of messages. It is acked when the last
// message is done.
type Unacked struct {
	From     *Consumer
	Received time.Time
	Split    atomic.Bool // another queue has one of them already; handed back, it would be judged twice
	Stranded atomic.Bool // no queue of the broker accepts one of them
	Back     atomic.Bool // one of them could not be moved to any queue: the delivery is handed back

	tag    uint64
	bytes  int
	single bool         // not a group
	open   atomic.Int32 // messages that are not done
}

// CountMessages sets the number of messages in the delivery.
func (u *Unacked) CountMessages(messages int) {
	u.open.Store(int32(messages))
	u.single = messages == 1
	u.From.open.Add(int64(messages))
}

// IsSingle reports whether the delivery is one message, not a group.
func (u *Unacked) IsSingle() bool { return u.single }

// MessageDone notes that one of the messages is done, and reports whether all are. Then the
// delivery must be passed to Consumer.Done.
func (u *Unacked) MessageDone() bool { return u.open.Add(-1) == 0 }

// Deliver receives a delivery without a channel, and does not pass it to Arrive. Tests call it, and
// then ask IsAcked and IsHandedBack.
func (c *Consumer) Deliver(d amqp.Delivery) *Unacked {
	d.DeliveryTag = uint64(len(c.acks.open) + 1)
	u, _ := c.keep(d)
	return u
}

// IsAcked reports whether the delivery is to be acked.
func (u *Unacked) IsAcked() bool {
	a := u.From.acks
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.find(u.tag)
	return ok && a.open[at].state == safe
}

// IsHandedBack reports whether the delivery is to be handed back.
func (u *Unacked) IsHandedBack() bool {
	a := u.From.acks
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Contains(a.back, u.tag)
}
