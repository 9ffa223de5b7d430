package verifier

import (
	"context"
	"slices"
	"time"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/forward"
)

// waitLimits bounds how many messages wait here, and for how long: for their transactions in the
// room, and for unavailable targets in the forwarder. It sets the others aside.
type waitLimits struct {
	*pipeline
	room     *waitingRoom
	evidence *evidence
	more     chan struct{} // woken when another message waits in the room or for a held target
}

// excess is the number of waiting messages from the staging queue beyond the limit (half of
// Options.Prefetch).
func (w *waitLimits) excess() int {
	return w.room.size() + w.forwarder.WaitingMessages() - w.opts.mostWaiting() - w.waiting.Messages()
}

// tend manages waiting messages: it retries held targets, and sets aside messages that have waited
// for too long or are too many.
func (w *waitLimits) tend(ctx context.Context) error {
	const interval = 50 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.more:
			if w.excess() <= 0 {
				continue
			}
		case now := <-ticker.C:
			w.forwarder.Retry(now)
			w.abandon()
			w.giveBack(now)
			w.evidence.report(now)
		}
		w.setAsideExcess(time.Now())
	}
}

// setAsideExcess sets aside messages that have waited for too long. Of the messages from the
// staging queue it also sets aside the oldest if they are too many, or leave too little of
// Options.MaxBytes. So there is always room for new messages, and a slow transaction delays its own
// messages only.
func (w *waitLimits) setAsideExcess(now time.Time) {
	excess := w.excess()
	fresh := func(m *message) bool { return m.unacked.From == w.staging }
	excessBytes := 0
	if w.staging.Short() { // waiting messages may have half of the room
		excessBytes = -w.staging.MaxBytes / 2
		count := func(m *message) bool {
			if fresh(m) {
				excessBytes += wire.Held(m.delivery)
			}
			return false
		}
		w.room.removeMessages(count)
		w.forwarder.RemoveHeld(forwards(count))
	}
	must := func(m *message) bool {
		if (excess > 0 || excessBytes > 0) && fresh(m) {
			excess--
			excessBytes -= wire.Held(m.delivery)
			return true
		}
		return w.overstays(m, now)
	}
	leaving := append(w.room.removeMessages(must), messagesOf(w.forwarder.RemoveHeld(forwards(must)))...)
	// A message may wait for a channel until the broker's consumer timeout is near.
	tooLong := func(m *message) bool { return !m.place.Ordered() && now.Sub(m.received) >= w.opts.HandBack }
	w.setAside(append(leaving, messagesOf(w.forwarder.RemoveUnsent(forwards(tooLong)))...)...)
}

// giveBack hands messages back to their queue that could not be set aside within another half of
// Options.HandBack, or of ConfirmTimeout if that is longer: nothing can be published, or the
// waiting or the dead queue takes nothing. They come again at once. A message in flight may arrive
// nevertheless, and then comes twice. An ordered queue gives back by its next channel
// (consume.OrderedQueue).
func (w *waitLimits) giveBack(now time.Time) {
	most := w.opts.HandBack + max(w.opts.HandBack, w.opts.ConfirmTimeout)/2
	tooLong := func(m *message) bool { return !m.unacked.From.Ordered && now.Sub(m.received) >= most }
	back := messagesOf(w.forwarder.Abandon(func(p *forward.Publication) bool {
		return slices.ContainsFunc(publicationOf(p).messages(), tooLong)
	}))
	if len(back) == 0 {
		return
	}
	w.log.Warn("messages requeued: neither forwarded nor set aside in time", "messages", len(back), "after", most)
	for _, m := range back {
		m.unacked.Back.Store(true)
	}
	w.release(back...)
}

// abandon removes waiting messages, and their dead letters, that will come again over another channel.
// Otherwise each closed channel of an ordered queue would leave all its messages here while the broker
// blocks publishing.
func (w *waitLimits) abandon() {
	if w.opts.Topology.OrderedShards == 0 {
		return
	}
	comesAgain := func(p *forward.Publication) bool {
		m := publicationOf(p).message
		return m != nil && m.comesAgain()
	}
	w.room.removeMessages((*message).comesAgain)
	w.forwarder.RemoveHeld(comesAgain)
	w.forwarder.RemoveUnsent(comesAgain)
}

// overstays reports whether a message has waited too long. A message from the staging queue may wait
// for Options.Patience. A message from the waiting queue may wait for the stay time if others may be
// waiting behind it, and otherwise for Options.HandBack.
func (w *waitLimits) overstays(m *message, now time.Time) bool {
	age := now.Sub(m.received)
	switch {
	case m.place.Ordered(): // it keeps its place
		return false
	case m.unacked.From == w.staging:
		return age >= min(w.opts.Patience, w.opts.HandBack)
	case w.waiting.Full() && m.withheld:
		return age >= min(max(w.stay.length(), w.evidence.stayTime(now)), w.opts.HandBack)
	case w.waiting.Full():
		return age >= min(w.stay.length(), w.opts.HandBack)
	default:
		return age >= w.opts.HandBack
	}
}
