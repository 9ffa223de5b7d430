package verifier

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/consume"
)

// unpack takes a delivery apart into its messages.
func (p *pipeline) unpack(u *consume.Unacked, d amqp.Delivery) {
	now := u.Received
	if at, ok := d.Headers[wire.HeaderSetAsideAt].(int64); ok && u.From == p.waiting {
		p.stay.adapt(now, now.Sub(time.UnixMilli(at)))
	}
	if wire.IsMarker(d) {
		p.takeMarker(u, d)
		return
	}
	members, err := wire.Members(d)
	if err != nil {
		u.CountMessages(1)
		p.deadLetter(&message{unacked: u, delivery: d, received: now}, deadReason{wire.DeadMalformed, err.Error()})
		return
	}
	u.CountMessages(len(members))
	for _, member := range members {
		p.parse(&message{unacked: u, delivery: member, received: now})
	}
}

// parse reads a message and has it looked up. A message that cannot be judged here goes to the dead
// queue.
func (p *pipeline) parse(m *message) {
	staged, err := wire.Parse(m.delivery)
	if err != nil {
		p.deadLetter(m, deadReason{wire.DeadMalformed, err.Error()})
		return
	}
	m.staged = staged
	if p.opts.KeepUserID {
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
	if staged.Ledger != p.ledger.Identity() {
		p.deadLetter(m, deadReason{wire.DeadForeign, "ledger " + staged.Ledger.String() +
			"; this verifier judges " + p.ledger.Identity().String() + ", perhaps in another database than the senders'"})
		return
	}
	if m.unacked.From != p.waiting { // a circulating message counts as load only when it has committed
		p.load.add(1)
	}
	if order := m.unacked.From.Order(); order != nil {
		order.Join(&m.place, staged.OrderKey, m)
	}
	if p.carried.take(m) {
		p.toLookUp.Add(m)
	}
}

// takeMarker passes a marker to the stager. A message that only looks like a marker goes to the dead queue.
func (p *pipeline) takeMarker(u *consume.Unacked, d amqp.Delivery) {
	marker, err := wire.ReadMarker(d)
	why := deadReason{code: wire.DeadMalformed}
	switch {
	case err != nil:
		why.text = err.Error()
	case u.From.Ordered:
		why.text = "a marker in an ordered queue"
	case marker.Ledger != p.ledger.Identity():
		why = deadReason{wire.DeadForeign, "marker of ledger " + marker.Ledger.String() +
			"; this verifier judges " + p.ledger.Identity().String()}
	default:
		u.CountMessages(0) // no message
		if p.stager == nil {
			endMarker(u)
			return
		}
		p.stager.markers.receive(heldMarker{marker, u, time.Now()})
		return
	}
	u.CountMessages(1)
	p.deadLetter(&message{unacked: u, delivery: d, received: u.Received}, why)
}
