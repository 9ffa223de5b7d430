package verifier

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/forward"
)

// excess is the number of waiting messages from the staging queue beyond the limit (half of
// Options.Prefetch).
func (s *session) excess() int {
	return s.room.size() + s.forwarder.WaitingMessages() - s.opts.mostWaiting() - s.waiting.Messages()
}

// tend manages waiting messages: it retries held targets, and sets aside messages that have waited
// for too long or are too many.
func (s *session) tend(ctx context.Context) error {
	const interval = 50 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.more:
			if s.excess() <= 0 {
				continue
			}
		case now := <-ticker.C:
			s.forwarder.Retry(now)
			s.abandon()
			s.giveBack(now)
			s.reportWithheld(now)
		}
		s.setAsideExcess(time.Now())
	}
}

// setAsideExcess sets aside messages that have waited for too long. Of the messages from the
// staging queue it also sets aside the oldest if they are too many, or leave too little of
// Options.MaxBytes. So there is always room for new messages, and a slow transaction delays its own
// messages only.
func (s *session) setAsideExcess(now time.Time) {
	excess := s.excess()
	fresh := func(m *message) bool { return m.unacked.From == s.staging }
	excessBytes := 0
	if s.staging.Short() { // waiting messages may have half of the room
		excessBytes = -s.staging.MaxBytes / 2
		count := func(m *message) bool {
			if fresh(m) {
				excessBytes += wire.Held(m.delivery)
			}
			return false
		}
		s.room.removeMessages(count)
		s.forwarder.RemoveHeld(forwards(count))
	}
	must := func(m *message) bool {
		if (excess > 0 || excessBytes > 0) && fresh(m) {
			excess--
			excessBytes -= wire.Held(m.delivery)
			return true
		}
		return s.overstays(m, now)
	}
	leaving := append(s.room.removeMessages(must), messagesOf(s.forwarder.RemoveHeld(forwards(must)))...)
	// A message may wait for a channel until the broker's consumer timeout is near.
	tooLong := func(m *message) bool { return !m.place.Ordered() && now.Sub(m.received) >= s.opts.HandBack }
	s.setAside(append(leaving, messagesOf(s.forwarder.RemoveUnsent(forwards(tooLong)))...)...)
}

// giveBack hands messages back to their queue that could not be set aside within another half of
// Options.HandBack, or of ConfirmTimeout if that is longer: nothing can be published, or the
// waiting or the dead queue takes nothing. They come again at once. A message in flight may arrive
// nevertheless, and then comes twice. An ordered queue gives back by its next channel
// (consume.Ordered).
func (s *session) giveBack(now time.Time) {
	most := s.opts.HandBack + max(s.opts.HandBack, s.opts.ConfirmTimeout)/2
	tooLong := func(m *message) bool { return !m.unacked.From.Ordered && now.Sub(m.received) >= most }
	back := messagesOf(s.forwarder.Abandon(func(p *forward.Publication) bool {
		return slices.ContainsFunc(publicationOf(p).messages(), tooLong)
	}))
	if len(back) == 0 {
		return
	}
	s.log.Warn("messages requeued: neither forwarded nor set aside in time", "messages", len(back), "after", most)
	for _, m := range back {
		m.unacked.Back.Store(true)
	}
	s.release(back...)
}

// overstays reports whether a message has waited for long enough. A message from the staging queue
// may wait for Options.Patience. A message from the waiting queue may wait for the stay time if
// others may be waiting behind it, else for Options.HandBack.
func (s *session) overstays(m *message, now time.Time) bool {
	age := now.Sub(m.received)
	switch {
	case m.place.Ordered(): // it keeps its place
		return false
	case m.unacked.From == s.staging:
		return age >= min(s.opts.Patience, s.opts.HandBack)
	case s.waiting.Full() && m.withheld:
		return age >= min(max(s.stay.length(), s.evidence.stayTime(now)), s.opts.HandBack)
	case s.waiting.Full():
		return age >= min(s.stay.length(), s.opts.HandBack)
	default:
		return age >= s.opts.HandBack
	}
}

const (
	// longestStay and shortestStay bound how long messages of the waiting queue stay here while others
	// wait behind them. (tend runs every 50 ms.)
	longestStay  = time.Second
	shortestStay = 50 * time.Millisecond
	// oftenRound and rareRound: each message of the waiting queue should come round again after a time
	// between these.
	oftenRound = time.Second
	rareRound  = 4 * time.Second
)

// A stayTime is how long messages of the waiting queue stay if others wait behind them. They have
// been looked up by then. A message whose transaction has ended may be behind very many of a
// transaction that stays open: so the more messages wait, the shorter the stay is.
type stayTime struct {
	mu      sync.Mutex
	shorter time.Duration // the stay is longestStay minus this
	changed time.Time
}

func (t *stayTime) length() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return longestStay - t.shorter
}

// adapt is called when a message has come round again, with the duration of the round. A changed
// stay affects that duration only from the next messages on, so the stay changes at most once per
// stay.
func (t *stayTime) adapt(now time.Time, round time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	length := longestStay - t.shorter
	if now.Sub(t.changed) < length {
		return
	}
	switch {
	case round > rareRound:
		length = max(length/2, shortestStay)
	case round < oftenRound:
		length = min(length*2, longestStay)
	default:
		return
	}
	t.shorter, t.changed = longestStay-length, now
}

// setAside moves messages to the waiting queue. Committed carried messages wait for a Touch first.
func (s *session) setAside(messages ...*message) {
	now := time.Now()
	var ready, first []*message
	for _, m := range messages {
		if m.needsTouch(now) {
			first = append(first, m)
		} else {
			ready = append(ready, m)
		}
	}
	if len(first) > 0 {
		s.touching.Add(len(first)) // until setAsideNow has published them
		s.toTouch.Add(first...)
	}
	s.setAsideNow(ready...)
}

// setAsideNow moves messages to the waiting queue, in groups: a group costs the broker as much as
// one message, and a long waiting queue circulates fast.
func (s *session) setAsideNow(messages ...*message) {
	now := time.Now()
	// No group is large beside the number that the consumer holds.
	packing := wire.Packing{Records: max(1, s.waiting.Prefetch/4), Bytes: groupBytes}
	var group []*publication
	var records [][]byte
	size := 0
	flush := func() {
		switch len(group) {
		case 0:
			return
		case 1:
			s.publish(group[0])
		default:
			s.publish(groupOf(s.ledger.Identity(), group, records, now))
		}
		group, records, size = nil, nil, 0
	}
	for _, m := range messages {
		p := m.toWaiting(s.opts.Topology.WaitingQueue(), now)
		record, ok := p.groupRecord()
		if !ok {
			s.publish(p)
			continue
		}
		if !packing.Fits(len(group)+1, size+len(record)) {
			flush()
		}
		group, records, size = append(group, p), append(records, record), size+len(record)
	}
	flush()
}

// setAsideAlone is setAsideNow without groups.
func (s *session) setAsideAlone(messages ...*message) {
	now := time.Now()
	for _, m := range messages {
		s.publish(m.toWaiting(s.opts.Topology.WaitingQueue(), now))
	}
}

// wasSetAside: the waiting queue has copies of these messages.
func (s *session) wasSetAside(messages ...*message) {
	now := time.Now()
	for _, m := range messages {
		m.verdict, m.safe = SetAside, now
		m.unacked.Apart.Store(true)
	}
	s.stats.setAside.Add(int64(len(messages)))
	s.done(messages...)
}
