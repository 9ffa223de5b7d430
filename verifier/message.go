package verifier

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A message is a delivered message, with the decisions about it.
type message struct {
	unacked  *unackedDelivery
	delivery amqp.Delivery // of a group's member: as if it had been delivered alone
	staged   wire.Staged   // zero if malformed
	received time.Time
	judged   time.Time
	safe     time.Time
	verdict  Verdict
	why      deathReason // why it goes to the dead queue, if it does

	committed       bool      // its row exists and is deleted when the message is safe elsewhere
	unroutableSince time.Time // when it began to wait for its missing target; with an order key: when its key was last held for it (retriesHoldingKey)
	attempts        int64     // failed attempts
	nacks           int64     // how many of these an exchange has nacked: as many copies may have arrived
	nackedAt        time.Time // when the last of these was nacked

	carried   *heldCarried // its entry among the held carried messages; nil if it has none
	touchedAt time.Time    // when its stage time was last moved, according to its copy in the waiting queue

	withheld bool // looks rolled back and waits for evidence; the room sets it

	keyOrder *keyOrder // the key order in which it waits for its turn; nil without an ordered queue
	ready    bool      // known to have committed, so it may have its turn
}

func (m *message) id() string { return m.delivery.MessageId }

// since returns when the message began to wait, as far as that is known.
func (m *message) since() time.Time {
	if at := m.staged.StagedAt; !at.IsZero() && at.Before(m.received) {
		return at
	}
	return m.received
}

// A publication is a message to publish and its destination: the message itself to its target, or a
// copy to one of the verifier's own queues. A group of messages goes to the waiting queue as one
// publication. Its result decides the next step of the message, which may be another publication.
type publication struct {
	course     course
	to         bridge.Target
	publishing *amqp.Publishing
	message    *message   // nil for a group
	group      []*message // the messages of a group for the waiting queue

	trial    bool    // an attempt at a held target
	solo     bool    // over a solo channel, because its target was silent
	slow     bool    // the last answer took long (behindAfter)
	problem  problem // why it was given up
	enclosed bool    // it is a dead letter in the form of a record
}

// A course is the purpose of a publication.
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

// messages returns the publication's messages.
func (p *publication) messages() []*message {
	if p.message == nil {
		return p.group
	}
	return []*message{p.message}
}

// forwards returns the message if the publication forwards it, else nil.
func (p *publication) forwards() *message {
	if p.course != forward {
		return nil
	}
	return p.message
}

// crowds is 1 if the message may be set aside when too many wait, and 0 if it must keep its order.
func (p *publication) crowds() int {
	if p.message != nil && p.message.keyOrder != nil {
		return 0
	}
	return 1
}

// toTarget returns a publication of the message itself.
func (m *message) toTarget() *publication {
	return &publication{course: forward, to: m.staged.Target(), publishing: &m.staged.Message.Publishing, message: m}
}

// toWaiting returns a copy for the waiting queue, in the staged form.
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

// toAudit returns a copy for the audit queue, in the staged form.
func (m *message) toAudit(queue string, now time.Time) *publication {
	staged := m.staged.Publishing()
	staged.Headers[wire.HeaderDroppedAt] = now.UTC().Format(time.RFC3339)
	return &publication{course: audit, to: bridge.Target{RoutingKey: queue}, publishing: &staged, message: m}
}

// A deathReason says why a message goes to the dead queue.
type deathReason struct {
	code string // one of wire.DeadReasons
	text string
}

// toDead returns a copy for the dead queue: the message in its staged form, with the reason.
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

// asRecord returns a dead letter whose body contains this one as a record.
func (p *publication) asRecord() *publication {
	record := wire.DeadRecord(*p.publishing)
	return &publication{course: deadLetter, to: p.to, publishing: &record, message: p.message, enclosed: true}
}
