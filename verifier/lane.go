package verifier

import (
	"context"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A lane is a consumer on a channel of its own, with its acks.
type lane struct {
	queue    string
	prefetch int
	ch       *amqp.Channel
	acks     *acks
	held     atomic.Int64 // messages taken and not done
	freed    chan struct{}
}

// A parcel is one unacked delivery: a message, or a group of them. It is acked
// when the last of them is done.
type parcel struct {
	lane   *lane
	tag    uint64
	single bool         // no group
	open   atomic.Int32 // messages that are not done
}

func newLane(queue string, prefetch int, ch *amqp.Channel) *lane {
	return &lane{queue: queue, prefetch: prefetch, ch: ch, acks: newAcks(ch), freed: make(chan struct{}, 1)}
}

// waitRoom waits until the lane holds fewer messages than it may: groups could
// bring many more than the prefetch count. It returns false if ctx ends.
func (l *lane) waitRoom(ctx context.Context) bool {
	for l.held.Load() >= int64(l.prefetch) {
		select {
		case <-l.freed:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// took says of how many messages a parcel consists.
func (l *lane) took(p *parcel, messages int) {
	p.single = messages == 1
	p.open.Store(int32(messages))
	l.held.Add(int64(messages))
}

// done lets messages go, and those parcels be acked that they were the last of.
func (l *lane) done(messages int, tags []uint64) {
	if messages == 0 {
		return
	}
	l.held.Add(-int64(messages))
	wake(l.freed)
	if len(tags) > 0 {
		l.acks.done(tags...)
	}
}

// reject hands the parcel, a single message, to the queue's own dead-letter
// exchange.
func (p *parcel) reject() error {
	p.lane.held.Add(-1)
	wake(p.lane.freed)
	return p.lane.acks.reject(p.tag)
}
