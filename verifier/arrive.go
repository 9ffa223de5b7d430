package verifier

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
)

// arrive unpacks a delivery.
func (s *steps) arrive(u *consume.Unacked, d amqp.Delivery) {
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
func (s *steps) parse(m *message) {
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

// arriveMarker takes a marker. A message that only looks like a marker goes to the dead queue.
func (s *steps) arriveMarker(u *consume.Unacked, d amqp.Delivery) {
	marker, err := wire.ReadMarker(d)
	why := deathReason{code: wire.DeadMalformed}
	switch {
	case err != nil:
		why.text = err.Error()
	case u.From.Ordered:
		why.text = "a marker in an ordered queue"
	case marker.Ledger != s.ledger.Identity():
		why = deathReason{wire.DeadForeign, "marker of ledger " + marker.Ledger.String() +
			"; this verifier judges " + s.ledger.Identity().String()}
	default:
		u.CountMessages(0) // no message
		if s.stager == nil {
			endMarker(u)
			return
		}
		s.stager.receive(heldMarker{marker, u, time.Now()})
		return
	}
	u.CountMessages(1)
	s.deadLetter(&message{unacked: u, delivery: d, received: u.Received}, why)
}
