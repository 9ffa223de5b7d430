package verifier

import (
	"maps"
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

	// Where it goes: itself to its target, or a copy to the dead queue, the waiting
	// queue or the audit queue.
	course course
	to     bridge.Target
	copy   *amqp.Publishing
	why    deathReason // of the dead queue

	group []*message // those that travel to the waiting queue in this one, if it is no message itself

	committed       bool // its row is there and goes when the message is safe elsewhere
	unroutableSince time.Time
	attempts        int64 // that failed
	trial           bool  // an attempt at a held target
	alone           bool  // over a careful channel: its target was stuck
	enclosed        bool  // its dead letter is a record
}

type course int

const (
	forward course = iota
	deadLetter
	setAside
	audit
)

func (m *message) id() string { return m.delivery.MessageId }

// since is when it began to wait, as far as that is known.
func (m *message) since() time.Time {
	if at := m.staged.StagedAt; !at.IsZero() && at.Before(m.received) {
		return at
	}
	return m.received
}

// publishing is what goes to m.to.
func (m *message) publishing() amqp.Publishing {
	if m.course == forward {
		return m.staged.Message.Publishing
	}
	return *m.copy
}

// forward sets the course to the target.
func (m *message) forward(keepUserID bool) {
	m.course, m.to = forward, m.staged.Target()
	if keepUserID {
		m.staged.Message.Publishing.UserId = m.staged.UserID
	}
}

// setAside sets the course to the waiting queue, in the staged form.
func (m *message) setAside(queue string, now time.Time) {
	staged := m.staged.Publishing()
	m.course, m.to, m.copy = setAside, bridge.Target{RoutingKey: queue}, &staged
	staged.Headers[wire.HeaderSetAsideAt] = now.UnixMilli()
	if !m.unroutableSince.IsZero() {
		staged.Headers[wire.HeaderUnroutableSince] = m.unroutableSince.UnixMilli()
	}
	if m.attempts > 0 {
		staged.Headers[wire.HeaderAttempts] = m.attempts
	}
}

// audit sets the course to the audit queue, in the staged form.
func (m *message) audit(queue string, now time.Time) {
	staged := m.staged.Publishing()
	m.course, m.to, m.copy = audit, bridge.Target{RoutingKey: queue}, &staged
	staged.Headers[wire.HeaderDroppedAt] = now.UTC().Format(time.RFC3339)
}

// A deathReason says why a message goes to the dead queue.
type deathReason struct {
	code string // of wire.DeadReasons
	text string
}

// deadLetter sets the course to the dead queue: the message as it was staged,
// with the reason.
func (m *message) deadLetter(queue string, why deathReason, now time.Time) {
	const textLimit = 1000
	d := m.delivery
	headers := make(amqp.Table, len(d.Headers)+4)
	maps.Copy(headers, d.Headers)
	verdict := "unknown"
	if m.committed {
		verdict = driver.Committed.String()
	}
	headers[wire.HeaderDeadReason] = why.code
	headers[wire.HeaderDeadText] = why.text[:min(len(why.text), textLimit)]
	headers[wire.HeaderDeadVerdict] = verdict
	headers[wire.HeaderDeadAttempts] = m.attempts
	headers[wire.HeaderDeadAt] = now.UTC().Format(time.RFC3339)
	if d.Expiration != "" { // must not act in the dead queue either
		headers[wire.HeaderExpiration] = d.Expiration
	}
	delete(headers, "CC")
	delete(headers, "BCC")
	m.why = why
	if m.judged.IsZero() {
		m.judged = now
	}
	m.course, m.enclosed, m.to = deadLetter, false, bridge.Target{RoutingKey: queue}
	d.Headers = headers
	letter := wire.Republished(d)
	m.copy = &letter
	if _, odd := headers[wire.HeaderDeadRecord]; odd { // somebody has made it up
		m.enclose()
	}
}

// enclose makes a record of a dead letter; it returns false if it is one already.
func (m *message) enclose() bool {
	if m.enclosed {
		return false
	}
	m.enclosed = true
	record := wire.DeadRecord(*m.copy)
	m.copy = &record
	return true
}
