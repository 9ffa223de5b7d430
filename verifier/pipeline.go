package verifier

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// take reads one consumer's deliveries, also while the session drains: acks bring new ones,
// which nobody unpacks any more, and the lane bounds them. There is no basic.cancel before
// the drain: RabbitMQ 3.10 ignores some of the acks that reach a quorum queue after it
// (measured). The channel's end cancels too.
func (s *session) take(ctx context.Context, l *lane) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.cancels:
			return fmt.Errorf("consume %q: %w", l.queue, errConsumerEnded)
		case d, ok := <-l.deliveries:
			if !ok {
				return fmt.Errorf("consume %q: %w", l.queue, errConsumerEnded)
			}
			l.receive(d)
		}
	}
}

// unpack takes apart what was delivered, and no more than the lane may hold.
func (s *session) unpack(ctx context.Context, l *lane) error {
	const some = 100
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.arrived.more:
		}
		for _, a := range l.arrived.take(some) {
			if !l.waitRoom(ctx) {
				return nil
			}
			s.arrive(a.parcel, a.delivery)
		}
	}
}

// arrive takes a delivery apart.
func (s *session) arrive(p *parcel, d amqp.Delivery) {
	now := p.received
	if at, ok := d.Headers[wire.HeaderSetAsideAt].(int64); ok && p.lane == s.waiting {
		s.turn.adapt(now, now.Sub(time.UnixMilli(at)))
	}
	members, err := wire.Members(d)
	if err != nil {
		p.lane.took(p, 1)
		s.deadLetter(&message{parcel: p, delivery: d, received: now}, deathReason{wire.DeadMalformed, err.Error()})
		return
	}
	p.lane.took(p, len(members))
	for _, member := range members {
		s.parse(&message{parcel: p, delivery: member, received: now})
	}
}

// parse reads a message. What cannot be judged here goes to the dead queue.
func (s *session) parse(m *message) {
	staged, err := wire.Parse(m.delivery)
	if err != nil {
		s.deadLetter(m, deathReason{wire.DeadMalformed, err.Error()})
		return
	}
	m.staged = staged
	if since, ok := m.delivery.Headers[wire.HeaderUnroutableSince].(int64); ok {
		m.unroutableSince = time.UnixMilli(since)
	}
	m.attempts, _ = m.delivery.Headers[wire.HeaderAttempts].(int64)
	if staged.Ledger != s.ledger.Identity() {
		s.deadLetter(m, deathReason{wire.DeadForeign, "ledger " + staged.Ledger.String() +
			"; this verifier judges " + s.ledger.Identity().String()})
		return
	}
	if m.parcel.lane == s.staging { // those that come round again do not count as load unless they go on
		s.arrived.add(1)
	}
	s.arrivals.add(m)
}

// committed sends messages on whose transaction has committed.
func (s *session) committed(messages ...*message) {
	now := time.Now()
	for _, m := range messages {
		m.committed, m.judged = true, now
		if !s.allow.permits(m.staged) {
			s.deadLetter(m, deathReason{wire.DeadNotAllowed, m.staged.Target().String() + " is not on the allow-list"})
			continue
		}
		m.forward(s.opts.KeepUserID)
		s.publish(m)
	}
}

// drop ends a message whose transaction has rolled back; a copy of it may be kept.
func (s *session) drop(m *message) {
	m.judged = time.Now()
	if s.opts.Topology.Audit > 0 {
		m.audit(s.opts.Topology.AuditQueue(), m.judged)
		s.publish(m)
		return
	}
	s.moving.add(1)
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
	m.deadLetter(s.opts.Topology.DeadQueue(), why, time.Now())
	s.publish(m)
}

// publish starts a message on its course, unless its target is held.
func (s *session) publish(m *message) {
	s.moving.add(1)
	if !s.held(m) {
		s.forwarder.publish(m)
	}
}

// safe: the broker has the message where its course led.
func (s *session) safe(m *message) {
	s.holds.ended(m)
	m.safe = time.Now()
	switch m.course {
	case forward:
		m.verdict = Forwarded
		s.stats.forwarded.Add(1)
	case deadLetter:
		s.dead(m)
		if !m.committed { // judged again, it would end there twice
			m.parcel.apart.Store(true)
		}
	case setAside: // the copy in the waiting queue will be judged
		s.wasSetAside(m)
		return
	case audit:
		s.dropped(m)
		return
	}
	if m.committed {
		s.forgotten.add(m)
	} else {
		s.done(m)
	}
}

// hold: the target does not take the message now.
func (s *session) hold(m *message, reason HoldReason) {
	if m.course == audit {
		s.log.Warn("no copy in the audit queue", "message_id", m.id(), "reason", reason.String())
		s.dropped(m)
		return
	}
	m.attempts++
	s.holds.failed(m, reason)
	s.moving.add(-1)
	s.crowd()
}

// held keeps a message that is about to be published if its target is held. A copy for the
// audit queue waits for nothing, and is never tried again.
func (s *session) held(m *message) bool {
	if m.course == audit && s.holds.holds(m.to) {
		s.dropped(m)
		return true
	}
	if !s.holds.takes(m) {
		return false
	}
	s.moving.add(-1)
	s.crowd()
	return true
}

// refused: the broker will never take the message at its target.
func (s *session) refused(m *message, refusal *amqp.Error) {
	if m.course != forward {
		if refusal.Code == amqp.PreconditionFailed { // this one, as a rule for its size
			s.unfit(m, refusal)
		} else { // our own queue: somebody must mend the rights
			s.hold(m, Full)
		}
		return
	}
	s.holds.ended(m)
	s.deadLetter(m, deathReason{wire.DeadRefused, fmt.Sprintf("%s: %d %s", m.to, refusal.Code, refusal.Reason)})
	s.moving.add(-1)
}

// unfit: the message cannot be published as it is. A dead letter becomes a record then,
// which leaves room for the reason. What is larger than the broker takes, since its
// max_message_size was lowered, cannot even be moved on this broker: it stays where it is.
func (s *session) unfit(m *message, err error) {
	s.holds.ended(m)
	switch {
	case m.group != nil:
		s.setAsideAlone(m.group...)
		s.moving.add(-1)
	case m.course == forward:
		s.deadLetter(m, deathReason{wire.DeadRefused, err.Error()})
		s.moving.add(-1)
	case m.course == audit:
		s.dropped(m)
	case m.course == deadLetter && m.enclose():
		s.publish(m)
		s.moving.add(-1)
	default:
		s.log.Error("message stays in its queue, since the broker takes it nowhere", "message_id", m.id(),
			"bytes", len(m.delivery.Body), "queue", m.parcel.lane.queue, "again_in", s.opts.HandBack, "error", err)
		m.parcel.stranded.Store(true)
		s.release(m)
	}
}

func (s *session) dead(m *message) {
	m.verdict = DeadLettered
	s.stats.deadLettered.Add(1)
	s.log.Warn("dead-lettered", "message_id", m.id(), "reason", m.why.code, "text", m.why.text)
}

// done lets messages be acked.
func (s *session) done(messages ...*message) {
	s.tell(messages...)
	s.release(messages...)
}

// release lets messages go.
func (s *session) release(messages ...*message) {
	for _, l := range []*lane{s.staging, s.waiting} {
		var ended []*parcel
		n := 0
		for _, m := range messages {
			if m.parcel.lane != l {
				continue
			}
			n++
			if m.parcel.open.Add(-1) == 0 {
				ended = append(ended, m.parcel)
			}
		}
		l.done(n, ended)
	}
	s.moving.add(-len(messages))
}
