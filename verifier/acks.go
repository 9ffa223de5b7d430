package verifier

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Delivery tags count from 1 on each channel, and live no longer than it.
type tagState uint8

const (
	unacked tagState = iota
	safe             // forwarded or dropped: may be acked
	acked
)

// gapPatience is how long a message that is done waits for those before it, so
// that one ack speaks for many.
const gapPatience = 100 * time.Millisecond

// acks turns messages that are done, in any order, into few acks: one multiple
// ack up to the tag below which all are done, and single acks for what is stuck
// behind a gap.
type acks struct {
	ch    acknowledger
	more  chan struct{}
	mu    sync.Mutex
	first uint64     // the tag of states[0]
	state []tagState // of the tags from first on
	stuck uint64     // tags up to here were behind a gap at the last look
	last  uint64     // the highest tag that is safe
}

// acknowledger is what acks needs of a channel.
type acknowledger interface {
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
	Reject(tag uint64, requeue bool) error
	Qos(count, size int, global bool) error
}

func newAcks(ch acknowledger) *acks {
	return &acks{ch: ch, more: make(chan struct{}, 1), first: 1}
}

// done says that the message with this tag is safe elsewhere, or rightly dropped.
func (a *acks) done(tags ...uint64) {
	a.mu.Lock()
	for _, tag := range tags {
		for tag >= a.first+uint64(len(a.state)) {
			a.state = append(a.state, unacked)
		}
		a.state[tag-a.first] = safe
		a.last = max(a.last, tag)
	}
	a.mu.Unlock()
	select {
	case a.more <- struct{}{}:
	default:
	}
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
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := 0; i < len(a.state); {
		kind, end := a.state[i], i
		for end < len(a.state) && a.state[end] == kind {
			end++
		}
		var err error
		switch last := a.first + uint64(end) - 1; kind {
		case safe:
			err = a.ch.Ack(last, true)
		case unacked:
			err = a.ch.Nack(last, true, true)
		}
		if err != nil {
			return fmt.Errorf("ack the last: %w", err)
		}
		i = end
	}
	a.state = nil
	if err := a.ch.Qos(1, 0, false); err != nil {
		return fmt.Errorf("ack the last: %w", err)
	}
	return nil
}

// flush acks what can be acked with one multiple ack. With singles it also acks,
// one by one, what was stuck behind a gap at the last such look already.
func (a *acks) flush(singles bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var run int     // states that are done from the front
	var upTo uint64 // the highest of them that is not acked yet
	for run < len(a.state) && a.state[run] != unacked {
		if a.state[run] == safe {
			upTo = a.first + uint64(run)
		}
		run++
	}
	if upTo != 0 {
		if err := a.ch.Ack(upTo, true); err != nil {
			return fmt.Errorf("ack: %w", err)
		}
	}
	a.state = a.state[run:]
	a.first += uint64(run)
	if !singles {
		return nil
	}
	for i, state := range a.state {
		tag := a.first + uint64(i)
		if tag > a.stuck {
			break
		}
		if state == safe {
			if err := a.ch.Ack(tag, false); err != nil {
				return fmt.Errorf("ack: %w", err)
			}
			a.state[i] = acked
		}
	}
	a.stuck = a.last
	return nil
}

func (a *acks) reject(tag uint64) error {
	if err := a.ch.Reject(tag, false); err != nil {
		return fmt.Errorf("reject: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for tag >= a.first+uint64(len(a.state)) {
		a.state = append(a.state, unacked)
	}
	a.state[tag-a.first] = acked
	return nil
}
