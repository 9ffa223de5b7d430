package verifier

import (
	"time"

	"github.com/twoqueue/twoqueue/verifier/internal/forward"
)

// comesAgain reports whether the message was delivered over a channel that was left or is about to
// be. The message comes again.
func (m *message) comesAgain() bool {
	order := m.unacked.From.Order() // the message has no place in it if it could not be judged
	if order == nil || !order.IsClosed() {
		return false
	}
	m.place.Finished()
	return true
}

// abandon removes waiting messages that will come over another channel, and their dead letters.
// While the broker blocks publishing, each consumer of an ordered queue would otherwise leave all
// its messages here.
func (s *session) abandon() {
	if len(s.shards) == 0 {
		return
	}
	comesAgain := func(p *forward.Publication) bool {
		m := publicationOf(p).message
		return m != nil && m.comesAgain()
	}
	s.room.removeMessages((*message).comesAgain)
	s.forwarder.RemoveHeld(comesAgain)
	s.forwarder.RemoveUnsent(comesAgain)
}

// passed gives the next message of the key its turn.
func (s *session) passed(m *message) {
	if next := m.place.Passed(); next != nil {
		s.publish(next.(*message).toTarget())
	}
}

// holdsKeyInstead reports whether a message that should go to the dead queue stays in its queue and
// holds its key instead.
func (s *session) holdsKeyInstead(m *message, why deathReason) bool {
	if !m.place.Ordered() || !m.committed || !s.opts.HoldKeys {
		return false
	}
	s.holdsKey(m, why)
	m.place.Finished()
	return true
}

// retriesHoldingKey is called when a message's target has not taken it for too long. With HoldKeys
// it publishes the message again, and the message holds its key. It returns false if the message
// should go to the dead queue instead.
func (s *session) retriesHoldingKey(m *message, why deathReason) bool {
	if !m.place.Ordered() || !s.opts.HoldKeys || m.comesAgain() {
		return false
	}
	s.holdsKey(m, why)
	m.retries.HoldKey(time.Now())
	s.publish(m.toTarget())
	return true
}

func (s *session) holdsKey(m *message, why deathReason) {
	s.log.Warn("a message holds its order key", "message_id", m.id(), "order_key", m.staged.OrderKey,
		"reason", why.code, "text", why.text)
}
