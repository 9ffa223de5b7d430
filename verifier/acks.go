package verifier

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Delivery tags count from 1 on each channel, and live no longer than it.
type tagState uint8

const (
	unacked tagState = iota
	safe             // forwarded or dropped: may be acked
	acked            // or handed back: the broker does not hold it here any more
)

// gapPatience is how long a message that is done waits for those before it, so
// that one ack speaks for many.
const gapPatience = 100 * time.Millisecond

// acks turns messages that are done, in any order, into few acks: one multiple
// ack up to the tag below which all are done, and single acks for what is stuck
// behind a gap. It remembers a delivery for as long as the broker holds it unacked, so
// that the prefetch count bounds its memory, however long a message stays.
type acks struct {
	ch    acknowledger
	more  chan struct{}
	mu    sync.Mutex
	open  []openTag // the lowest tag first
	back  []uint64  // to be handed back
	stuck uint64    // tags up to here were behind a gap at the last look
	last  uint64    // the highest tag that is safe
}

type openTag struct {
	tag   uint64
	state tagState
	since time.Time
}

// acknowledger is what acks needs of a channel.
type acknowledger interface {
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
	Qos(count, size int, global bool) error
}

func newAcks(ch acknowledger) *acks {
	return &acks{ch: ch, more: make(chan struct{}, 1)}
}

// took says that a delivery is here. It must be told of all of them, in their order: one
// ack speaks for every lower tag.
func (a *acks) took(tag uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = append(a.open, openTag{tag, unacked, time.Now()})
}

// done says that the message with this tag is safe elsewhere, or rightly dropped.
func (a *acks) done(tags ...uint64) {
	a.mu.Lock()
	for _, tag := range tags {
		if i, ok := a.find(tag); ok {
			a.open[i].state = safe
			a.last = max(a.last, tag)
		}
	}
	a.mu.Unlock()
	wake(a.more)
}

// handBack gives messages back to the queue.
func (a *acks) handBack(tags ...uint64) {
	a.mu.Lock()
	a.back = append(a.back, tags...)
	a.mu.Unlock()
	wake(a.more)
}

func (a *acks) find(tag uint64) (int, bool) {
	return slices.BinarySearchFunc(a.open, tag, func(o openTag, tag uint64) int { return cmp.Compare(o.tag, tag) })
}

// run acks until ctx ends.
func (a *acks) run(ctx context.Context) error {
	ticker := time.NewTicker(gapPatience)
	defer ticker.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-a.more:
			err = a.flush(false)
		case <-ticker.C:
			err = a.flush(true)
		}
		if err != nil {
			return err
		}
	}
}

// finish acks at the end all that is done and hands back the rest, with one
// multiple ack or nack for each run of tags: a quorum queue's channel that has
// many small acks to pass on when it is closed loses some of them (measured on
// RabbitMQ 3.10; harmless, but those messages come again). The last call waits
// for the broker to have read the acks.
func (a *acks) finish() error {
	if err := a.sendLast(); err != nil {
		return fmt.Errorf("ack the last: %w", err)
	}
	return a.awaitRead()
}

func (a *acks) sendLast() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = slices.DeleteFunc(a.open, func(o openTag) bool { return o.state == acked })
	for i := 0; i < len(a.open); {
		kind, end := a.open[i].state, i
		for end < len(a.open) && a.open[end].state == kind {
			end++
		}
		var err error
		switch last := a.open[end-1].tag; kind {
		case safe:
			err = a.ch.Ack(last, true)
		case unacked:
			err = a.ch.Nack(last, true, true)
		}
		if err != nil {
			return err
		}
		i = end
	}
	a.open = nil
	return nil
}

// awaitRead waits until the broker has read the acks. Its answer comes behind deliveries, and
// took must not wait for it.
func (a *acks) awaitRead() error {
	if err := a.ch.Qos(1, 0, false); err != nil {
		return fmt.Errorf("ack the last: %w", err)
	}
	return nil
}

// leave is finish without handing anything back: the end of the channel does that, and
// keeps the order.
func (a *acks) leave() error {
	a.mu.Lock()
	a.stuck = math.MaxUint64
	err := a.send(true)
	a.mu.Unlock()
	if err != nil {
		return err
	}
	return a.awaitRead()
}

// oldest is the time of the oldest delivery that is not done.
func (a *acks) oldest() (since time.Time, some bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range a.open {
		if o.state == unacked {
			return o.since, true
		}
	}
	return since, false
}

// flush acks what can be acked with one multiple ack. With singles it also acks,
// one by one, what was stuck behind a gap at the last such look already.
func (a *acks) flush(singles bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.send(singles)
}

func (a *acks) send(singles bool) error {
	for _, tag := range a.back {
		if i, ok := a.find(tag); ok {
			if err := a.ch.Nack(tag, false, true); err != nil {
				return fmt.Errorf("hand back: %w", err)
			}
			a.open[i].state = acked
		}
	}
	a.back = nil
	var run int     // tags that are done from the front
	var upTo uint64 // the highest of them that is not acked yet
	for run < len(a.open) && a.open[run].state != unacked {
		if a.open[run].state == safe {
			upTo = a.open[run].tag
		}
		run++
	}
	if upTo != 0 {
		if err := a.ch.Ack(upTo, true); err != nil {
			return fmt.Errorf("ack: %w", err)
		}
	}
	a.open = a.open[run:]
	if !singles {
		return nil
	}
	for i, o := range a.open {
		if o.tag > a.stuck {
			break
		}
		if o.state == safe {
			if err := a.ch.Ack(o.tag, false); err != nil {
				return fmt.Errorf("ack: %w", err)
			}
			a.open[i].state = acked
		}
	}
	a.open = slices.DeleteFunc(a.open, func(o openTag) bool { return o.state == acked })
	a.stuck = a.last
	return nil
}
