package verifier

import (
	"context"
	"time"
)

// crowd has tend look at once whether more messages wait than may.
func (s *session) crowd() {
	if s.room.size()+s.holds.size() > s.opts.Waiting {
		wake(s.crowded)
	}
}

// tend looks after those who wait: it tries held targets again, and sets aside
// whoever has waited for too long or is one too many.
func (s *session) tend(ctx context.Context) error {
	const interval = 50 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.crowded:
		case now := <-ticker.C:
			s.holds.tick(now)
		}
		s.thin(time.Now())
	}
}

// thin sets aside whoever has waited for too long, and the oldest of those from
// the staging queue that exceed Options.Waiting, or leave too little of Options.MaxBytes; so the room always has space for
// new ones, and a slow transaction delays its own messages only.
func (s *session) thin(now time.Time) {
	excess := s.room.size() + s.holds.size() - s.opts.Waiting - int(s.waiting.held.Load())
	fresh := func(m *message) bool { return m.course == forward && m.parcel.lane == s.staging }
	excessBytes := 0
	if s.staging.short() { // they may have half of the room
		excessBytes = -s.staging.maxBytes / 2
		count := func(m *message) bool {
			if fresh(m) {
				excessBytes += len(m.delivery.Body)
			}
			return false
		}
		s.room.leave(count)
		s.holds.leave(count)
	}
	must := func(m *message) bool {
		if (excess > 0 || excessBytes > 0) && fresh(m) {
			excess--
			excessBytes -= len(m.delivery.Body)
			return true
		}
		return s.overstays(m, now)
	}
	s.setAside(append(s.room.leave(must), s.holds.leave(must)...)...)
}

// overstays tells whether a message has waited for long enough: one from the
// staging queue for Options.Patience; one from the waiting queue for a turn, if
// others may be waiting behind it, else until the broker would lose patience.
func (s *session) overstays(m *message, now time.Time) bool {
	const turn = time.Second
	age := now.Sub(m.received)
	switch {
	case m.course != forward: // on its way to one of our own queues
		return false
	case m.parcel.lane == s.staging:
		return age >= min(s.opts.Patience, s.opts.HandBack)
	case s.waiting.full():
		return age >= min(turn, s.opts.HandBack)
	default:
		return age >= s.opts.HandBack
	}
}

// setAside moves messages to the waiting queue.
func (s *session) setAside(messages ...*message) {
	for _, m := range messages {
		m.setAside(s.opts.Topology.WaitingQueue())
		s.publish(m)
	}
}
