package verifier

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A message is one that was delivered, and what has been decided about it.
type message struct {
	parcel   *parcel
	delivery amqp.Delivery // of a group's member: as if it had been delivered alone
	staged   wire.Staged   // zero if malformed
	received time.Time
	judged   time.Time
	safe     time.Time
	verdict  Verdict
	why      deathReason // if it goes to the dead queue

	committed       bool      // its row is there and goes when the message is safe elsewhere
	unroutableSince time.Time // of one with an order key: when its key was last held for it, see holds.givesUp
	attempts        int64     // that failed
	nacks           int64     // of these, how many an exchange has nacked: as many copies may have arrived
	nackedAt        time.Time // the last time

	carried   *heldCarried // its place among the carried messages that are held; nil if it has none
	touchedAt time.Time    // as it came from the waiting queue: when its stage time was moved on last

	withheld bool // looks rolled back and waits for evidence; belongs to the room

	line  *line // in which it waits for its turn; nil without an ordered queue
	ready bool  // for its turn: known to have committed
}

func (m *message) id() string { return m.delivery.MessageId }

// since is when it began to wait, as far as that is known.
func (m *message) since() time.Time {
	if at := m.staged.StagedAt; !at.IsZero() && at.Before(m.received) {
		return at
	}
	return m.received
}

// A publication is what is published for a message, and where: the message itself to its
// target, or a copy to one of the verifier's own queues. A group of messages travels to the
// waiting queue in one. What becomes of the publication decides what is next for the
// message, which may be another publication.
type publication struct {
	course     course
	to         bridge.Target
	publishing *amqp.Publishing
	message    *message   // nil if it is of a group
	group      []*message // to the waiting queue

	trial    bool    // an attempt at a held target
	alone    bool    // over a careful channel: its target was silent
	slow     bool    // the last answer took long (behindAfter)
	problem  problem // why it was given up
	enclosed bool    // it is a dead letter that is a record
}

// A course says why a message is published.
type course int

const (
	forward course = iota
	deadLetter
	setAside
	audit
)

func (p *publication) id() string {
	if p.message == nil {
		return p.publishing.MessageId
	}
	return p.message.id()
}

// messages are those that it carries.
func (p *publication) messages() []*message {
	if p.message == nil {
		return p.group
	}
	return []*message{p.message}
}

// forwards returns the message if the publication is to forward it, else nil.
func (p *publication) forwards() *message {
	if p.course != forward {
		return nil
	}
	return p.message
}

// crowds counts what may be set aside when too many wait: not what must keep its order.
func (p *publication) crowds() int {
	if p.message != nil && p.message.line != nil {
		return 0
	}
	return 1
}

// toTarget is the message itself.
func (m *message) toTarget() *publication {
	return &publication{course: forward, to: m.staged.Target(), publishing: &m.staged.Message.Publishing, message: m}
}

// toWaiting is a copy for the waiting queue, in the staged form.
func (m *message) toWaiting(queue string, now time.Time) *publication {
	staged := m.staged.Publishing()
	staged.Headers[wire.HeaderSetAsideAt] = now.UnixMilli()
	if !m.unroutableSince.IsZero() {
		staged.Headers[wire.HeaderUnroutableSince] = m.unroutableSince.UnixMilli()
	}
	if m.attempts > 0 {
		staged.Headers[wire.HeaderAttempts] = m.attempts
	}
	if m.carried != nil {
		if at := m.carried.touched.Load(); at != 0 {
			staged.Headers[wire.HeaderTouchedAt] = at
		}
	}
	if m.nacks > 0 {
		staged.Headers[wire.HeaderNacks], staged.Headers[wire.HeaderNackedAt] = m.nacks, m.nackedAt.UnixMilli()
	}
	return &publication{course: setAside, to: bridge.Target{RoutingKey: queue}, publishing: &staged, message: m}
}

// toAudit is a copy for the audit queue, in the staged form.
func (m *message) toAudit(queue string, now time.Time) *publication {
	staged := m.staged.Publishing()
	staged.Headers[wire.HeaderDroppedAt] = now.UTC().Format(time.RFC3339)
	return &publication{course: audit, to: bridge.Target{RoutingKey: queue}, publishing: &staged, message: m}
}

// A deathReason says why a message goes to the dead queue.
type deathReason struct {
	code string // of wire.DeadReasons
	text string
}

// toDead is a copy for the dead queue: the message as it was staged, with the reason.
func (m *message) toDead(queue string, now time.Time) *publication {
	const textLimit = 1000
	outcome := "unknown"
	if m.committed {
		outcome = driver.Committed.String()
	}
	letter := wire.DeadLetter(m.delivery, amqp.Table{
		wire.HeaderDeadReason:   m.why.code,
		wire.HeaderDeadText:     m.why.text[:min(len(m.why.text), textLimit)],
		wire.HeaderDeadVerdict:  outcome,
		wire.HeaderDeadAttempts: m.attempts,
		wire.HeaderDeadAt:       now.UTC().Format(time.RFC3339),
	})
	_, record := letter.Headers[wire.HeaderDeadRecord]
	return &publication{course: deadLetter, to: bridge.Target{RoutingKey: queue}, publishing: &letter, message: m,
		enclosed: record && !wire.Unreadable(m.delivery)}
}

// asRecord is a dead letter as a record in the body of another.
func (p *publication) asRecord() *publication {
	record := wire.DeadRecord(*p.publishing)
	return &publication{course: deadLetter, to: p.to, publishing: &record, message: p.message, enclosed: true}
}
