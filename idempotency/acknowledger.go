package idempotency

import (
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// An acknowledger is the Acknowledger of one delivery. In an ordered session it ends the channel
// instead of requeueing, because other messages could overtake a requeued one.
type acknowledger struct {
	session *consumerSession
	openDelivery
}

var _ amqp.Acknowledger = (*acknowledger)(nil)
var _ engine.BatchAcknowledger = (*acknowledger)(nil)
var _ engine.Closable = (*acknowledger)(nil)

func (a *acknowledger) Ack(tag uint64, multiple bool) error {
	a.done.Store(true)
	if multiple {
		return a.releaseKey(a.session.open.acknowledge(tag, multiple, func() error { return a.session.channel.Ack(tag, multiple) }))
	}
	return a.releaseKey(a.session.open.ackOne(tag, a.session.over))
}

// AckBatch acks deliveries of the session.
func (a *acknowledger) AckBatch(tags []uint64) error {
	acked, err := a.session.open.ackBatch(tags)
	for _, other := range acked {
		_ = other.releaseKey(err)
	}
	return err
}

func (a *acknowledger) Nack(tag uint64, multiple, requeue bool) error {
	if requeue {
		return a.requeue(tag, multiple)
	}
	a.done.Store(true)
	return a.releaseKey(a.session.open.acknowledge(tag, multiple, func() error { return a.session.channel.Nack(tag, multiple, false) }))
}

func (a *acknowledger) Reject(tag uint64, requeue bool) error {
	if requeue {
		return a.requeue(tag, false)
	}
	a.done.Store(true)
	return a.releaseKey(a.session.open.acknowledge(tag, false, func() error { return a.session.channel.Reject(tag, false) }))
}

// requeue does nothing once the session is over, because the broker would deliver the message here
// again. The end of the connection returns it.
func (a *acknowledger) requeue(tag uint64, multiple bool) error {
	a.done.Store(true)
	switch {
	case a.session.Ordered:
		return a.Close()
	case a.session.over():
		return nil
	}
	return a.session.open.acknowledge(tag, multiple, func() error { return a.session.channel.Nack(tag, multiple, true) })
}

// Close ends the session, which returns all unacked messages. A versions.HighWater calls it.
func (a *acknowledger) Close() error {
	a.done.Store(true)
	a.session.end(errReturned)
	return nil
}

// IsClosed reports whether no further delivery of the session may be handled.
func (a *acknowledger) IsClosed() bool { return a.session.over() || a.session.channel.IsClosed() }
