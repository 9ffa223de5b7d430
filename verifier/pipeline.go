package verifier

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
	"github.com/twoqueue/twoqueue/verifier/internal/forward"
)

// arrive unpacks a delivery.
func (s *session) arrive(u *consume.Unacked, d amqp.Delivery) {
	now := u.Received
	if at, ok := d.Headers[wire.HeaderSetAsideAt].(int64); ok && u.From == s.waiting {
		s.stay.adapt(now, now.Sub(time.UnixMilli(at)))
	}
	if wire.IsMarker(d) {
		s.arriveMarker(u, d)
		return
	}
	members, err := wire.Members(d)
	if err != nil {
		u.CountMessages(1)
		s.deadLetter(&message{unacked: u, delivery: d, received: now}, deathReason{wire.DeadMalformed, err.Error()})
		return
	}
	u.CountMessages(len(members))
	for _, member := range members {
		s.parse(&message{unacked: u, delivery: member, received: now})
	}
}

// parse reads a message. A message that cannot be judged here goes to the dead queue.
func (s *session) parse(m *message) {
	staged, err := wire.Parse(m.delivery)
	if err != nil {
		s.deadLetter(m, deathReason{wire.DeadMalformed, err.Error()})
		return
	}
	m.staged = staged
	if s.opts.KeepUserID {
		m.staged.Message.Publishing.UserId = staged.UserID
	}
	if since, ok := m.delivery.Headers[wire.HeaderUnroutableSince].(int64); ok {
		m.retries.UnroutableSince = time.UnixMilli(since)
	}
	m.retries.Attempts, _ = m.delivery.Headers[wire.HeaderAttempts].(int64)
	if at, ok := m.delivery.Headers[wire.HeaderNackedAt].(int64); ok {
		m.retries.NackedAt = time.UnixMilli(at)
		m.retries.Nacks, _ = m.delivery.Headers[wire.HeaderNacks].(int64)
	}
	if at, ok := m.delivery.Headers[wire.HeaderTouchedAt].(int64); ok {
		m.touchedAt = time.UnixMilli(at)
	}
	if staged.Ledger != s.ledger.Identity() {
		s.deadLetter(m, deathReason{wire.DeadForeign, "ledger " + staged.Ledger.String() +
			"; this verifier judges " + s.ledger.Identity().String() + ", perhaps in another database than the senders'"})
		return
	}
	if m.unacked.From != s.waiting { // a message that comes round again counts as load only if it goes on
		s.load.add(1)
	}
	if order := m.unacked.From.Order(); order != nil {
		order.Join(&m.place, staged.OrderKey, m)
	}
	if s.carried.take(m) {
		s.arrivals.Add(m)
	}
}

// committed sends messages on whose transaction has committed.
func (s *session) committed(messages ...*message) {
	now := time.Now()
	s.carried.committed(now, messages...)
	for _, m := range messages {
		if m.comesAgain() {
			continue
		}
		m.committed, m.judged = true, now
		if !s.allow.permits(m.staged) {
			s.deadLetter(m, deathReason{wire.DeadNotAllowed, notAllowed(m.staged.Target())})
			continue
		}
		if m.place.Ready() {
			s.publish(m.toTarget())
		}
	}
}

func notAllowed(to bridge.Target) string {
	if to.DirectReply() {
		return to.String() + " is a direct reply-to: the broker does not report whether the message arrived; the requester must name a queue"
	}
	return to.String() + " is not on the allow-list"
}

// drop ends a message whose transaction has rolled back. The audit queue may keep a copy.
func (s *session) drop(m *message) {
	if m.comesAgain() {
		return
	}
	m.judged = time.Now()
	s.passed(m)
	if s.opts.Topology.Audit > 0 {
		s.publish(m.toAudit(s.opts.Topology.AuditQueue(), m.judged))
		return
	}
	s.dropped(m)
}

func (s *session) dropped(m *message) {
	m.verdict = Dropped
	s.stats.dropped.Add(1)
	s.log.Debug("dropped", "message_id", m.id(), "outcome", driver.RolledBack.String())
	s.done(m)
}

// deadLetter sends a message to the dead queue.
func (s *session) deadLetter(m *message, why deathReason) {
	if m.comesAgain() || s.holdsKeyInstead(m, why) {
		return
	}
	now := time.Now()
	m.why = why
	if m.judged.IsZero() {
		m.judged = now
	}
	s.publish(m.toDead(s.opts.Topology.DeadQueue(), now))
}

// publish passes a publication to the forwarder, which calls publicationEnded at its end.
func (s *session) publish(p *publication) {
	p.Of = p
	s.forwarder.Publish(&p.Publication)
}

// publicationEnded takes over publications that the forwarder has ended.
func (s *session) publicationEnded(p *publication, what forward.Fate, err error) {
	switch what {
	case forward.Placed:
		s.placed(p)
	case forward.Refused:
		s.refused(p, err)
	case forward.Expired:
		s.giveUp(p.message, deathReason{wire.DeadUnroutable, err.Error()})
	case forward.NackedOut:
		s.giveUp(p.message, deathReason{wire.DeadFull, err.Error()})
	case forward.LeftOut:
		s.dropped(p.message)
	}
}

// giveUp sends a message to the dead queue after its target has not taken it for too long.
func (s *session) giveUp(m *message, why deathReason) {
	if !s.retriesHoldingKey(m, why) {
		s.deadLetter(m, why)
	}
}

// placed: the broker has confirmed the publication.
func (s *session) placed(p *publication) {
	if p.course == setAside { // the copy in the waiting queue will be judged
		s.wasSetAside(p.messages()...)
		return
	}
	m := p.message
	m.safe = time.Now()
	switch p.course {
	case toTarget:
		m.verdict = Forwarded
		s.stats.forwarded.Add(1)
		s.passed(m)
	case deadLetter:
		s.dead(m)
		s.passed(m)
		if !m.committed { // judged again, it would go there twice
			m.unacked.Apart.Store(true)
		}
	case audit:
		s.dropped(m)
		return
	}
	if m.committed {
		s.forgetting.Add(1)
		s.toForget.Add(m)
	} else {
		s.done(m)
	}
}

// refused: the broker will never accept p. A dead letter then becomes a record, which leaves room
// for the reason. A message that is larger than the broker accepts (its max_message_size was
// lowered) cannot be moved to any queue: it stays in its own.
func (s *session) refused(p *publication, err error) {
	switch m := p.message; {
	case p.group != nil:
		s.setAsideAlone(p.group...)
	case p.course == toTarget:
		s.deadLetter(m, deathReason{wire.DeadRefused, err.Error()})
	case p.course == audit:
		s.dropped(m)
	case p.course == deadLetter && !p.enclosed:
		s.publish(p.asRecord())
	default:
		s.log.Error("broker accepts the message in no queue; it stays where it is", "message_id", m.id(),
			"bytes", len(m.delivery.Body), "queue", m.unacked.From.Queue, "retry_in", s.opts.HandBack, "error", err)
		m.unacked.Stranded.Store(true)
		m.delivery.Body, m.staged.Message.Publishing.Body = nil, nil // in an ordered queue the message holds its key
		s.release(m)
	}
}

func (s *session) dead(m *message) {
	m.verdict = DeadLettered
	s.stats.deadLettered.Add(1)
	s.log.Warn("dead-lettered", "message_id", m.id(), "reason", m.why.code, "text", m.why.text)
}

// done reports finished messages to the observer and lets them be acked.
func (s *session) done(messages ...*message) {
	s.notify(messages...)
	s.release(messages...)
}

// release removes messages from the session, and lets the deliveries that they complete be acked.
func (s *session) release(messages ...*message) {
	for len(messages) > 0 { // consumer by consumer
		c := messages[0].unacked.From
		var ended []*consume.Unacked
		var others []*message
		n := 0
		for _, m := range messages {
			if m.unacked.From != c {
				others = append(others, m)
				continue
			}
			n++
			m.place.Finished()
			if m.staged.Restaged && s.stager != nil {
				s.stager.staged.noteDone(m.staged.ID)
			}
			if m.carried != nil {
				if copies := s.carried.remove(m); len(copies) > 0 {
					defer s.endJoined(m, copies)
				}
			}
			if m.unacked.MessageDone() {
				ended = append(ended, m.unacked)
			}
		}
		c.Done(n, ended)
		messages = others
	}
}
