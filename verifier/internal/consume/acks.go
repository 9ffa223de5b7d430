package consume

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

// Delivery tags count from 1 on each channel and are valid only there.
type tagState uint8

const (
	unacked tagState = iota
	safe             // forwarded or dropped: may be acked
	acked            // or handed back: the broker no longer holds it on this channel
)

// gapPatience is how long a finished message waits for earlier unfinished ones, so that one
// multiple ack covers many messages.
const gapPatience = 100 * time.Millisecond

// acks turns messages that finish in any order into few acks: one multiple ack up to the highest
// tag below which all are done, and single acks for done messages behind a gap. It remembers a
// delivery only while the broker holds it unacked, so the prefetch count bounds its memory, however
// long a message stays.
type acks struct {
	ch    acknowledger
	more  chan struct{}
	mu    sync.Mutex
	open  []openTag // the lowest tag first
	back  []uint64  // to be handed back
	stuck uint64    // tags up to here were behind a gap at the last flush with singles
	last  uint64    // the highest safe tag
}

type openTag struct {
	tag   uint64
	state tagState
	since time.Time
}

// acknowledger is the part of a channel that acks uses.
type acknowledger interface {
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
	Qos(count, size int, global bool) error
}

func newAcks(ch acknowledger) *acks {
	return &acks{ch: ch, more: make(chan struct{}, 1)}
}

// register registers a delivery. It must be called for every delivery, in their order: one ack
// covers every lower tag.
func (a *acks) register(tag uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = append(a.open, openTag{tag, unacked, time.Now()})
}

// done marks messages as safe: forwarded, or rightly dropped.
func (a *acks) done(tags ...uint64) {
	a.mu.Lock()
	for _, tag := range tags {
		if i, ok := a.find(tag); ok {
			a.open[i].state = safe
			a.last = max(a.last, tag)
		}
	}
	a.mu.Unlock()
	pipe.Wake(a.more)
}

// handBack returns messages to their queue.
func (a *acks) handBack(tags ...uint64) {
	a.mu.Lock()
	a.back = append(a.back, tags...)
	a.mu.Unlock()
	pipe.Wake(a.more)
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

// finish acks all safe messages at the end and hands back the rest, with one multiple ack or nack
// for each run of tags, and waits until the broker has read them. Of many small acks RabbitMQ loses
// some when a quorum queue's channel closes (measured on 3.10): these messages come again.
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

// awaitRead waits until the broker has read the acks. The answer arrives behind deliveries, which
// need mu to be registered, so the caller must not hold it.
func (a *acks) awaitRead() error {
	if err := a.ch.Qos(1, 0, false); err != nil {
		return fmt.Errorf("ack the last: %w", err)
	}
	return nil
}

// finishInOrder acks all safe messages and hands nothing back: closing the channel does that in order.
func (a *acks) finishInOrder() error {
	a.mu.Lock()
	a.stuck = math.MaxUint64
	err := a.send(true)
	a.mu.Unlock()
	if err != nil {
		return err
	}
	return a.awaitRead()
}

// oldest returns the time of the oldest delivery that is not done.
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

// flush acks the done messages that one multiple ack can cover. With singles it also acks, one by
// one, the messages that were behind a gap at the previous flush with singles already.
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
	var run int     // tags that are done, from the front
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
