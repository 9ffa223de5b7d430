package verifier

import (
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// A message is one unacked delivery and what has been decided about it.
type message struct {
	delivery amqp.Delivery
	lane     *lane         // where it came from, and must be acked
	staged   bridge.Staged // zero if malformed
	received time.Time

	// What shall be published: the message itself to its target, or a copy to
	// the dead queue or to the waiting queue.
	course  course
	why     deathReason // of the dead queue
	to      bridge.Target
	content amqp.Publishing

	committed       bool // its row is there and goes when the message is safe elsewhere
	unroutableSince time.Time
	trial           bool // an attempt at a held target
}

type course int

const (
	forward course = iota
	deadLetter
	setAside
)

func (m *message) id() string { return m.delivery.MessageId }

// forward sets the course to the target.
func (m *message) forward(keepUserID bool) {
	m.course, m.to, m.content = forward, m.staged.Target(), m.staged.Message.Publishing
	if keepUserID {
		m.content.UserId = m.staged.UserID
	}
}

// setAside sets the course to the waiting queue, in the staged form.
func (m *message) setAside(queue string) {
	m.course, m.to, m.content = setAside, bridge.Target{RoutingKey: queue}, m.staged.Publishing()
	if !m.unroutableSince.IsZero() {
		m.content.Headers[bridge.HeaderUnroutableSince] = m.unroutableSince.UnixMilli()
	}
}

// A deathReason says why a message goes to the dead queue.
type deathReason struct {
	code string
	text string
}

// The codes of bridge.HeaderDeadReason.
const (
	reasonMalformed  = "malformed"   // does not follow the wire format
	reasonForeign    = "foreign"     // belongs to another ledger
	reasonNotAllowed = "not-allowed" // the target is not on the allow-list
	reasonRefused    = "refused"     // the broker refused it for good
	reasonUnroutable = "unroutable"  // the target was missing for too long
)

// deadLetter sets the course to the dead queue: the message as it was staged,
// with the reason.
func (m *message) deadLetter(queue string, why deathReason, now time.Time) {
	const textLimit = 1000
	d := m.delivery
	headers := make(amqp.Table, len(d.Headers)+4)
	maps.Copy(headers, d.Headers)
	verdict := "unknown"
	if m.committed {
		verdict = bridge.Committed.String()
	}
	headers[bridge.HeaderDeadReason] = why.code
	headers[bridge.HeaderDeadText] = why.text[:min(len(why.text), textLimit)]
	headers[bridge.HeaderDeadVerdict] = verdict
	headers[bridge.HeaderDeadAt] = now.UTC().Format(time.RFC3339)
	if d.Expiration != "" { // must not act in the dead queue either
		headers[bridge.HeaderExpiration] = d.Expiration
	}
	delete(headers, "CC")
	delete(headers, "BCC")
	m.why = why
	m.course, m.to = deadLetter, bridge.Target{RoutingKey: queue}
	m.content = amqp.Publishing{
		Headers:         headers,
		ContentType:     d.ContentType,
		ContentEncoding: d.ContentEncoding,
		DeliveryMode:    amqp.Persistent,
		Priority:        d.Priority,
		CorrelationId:   d.CorrelationId,
		ReplyTo:         d.ReplyTo,
		MessageId:       d.MessageId,
		Timestamp:       d.Timestamp,
		Type:            d.Type,
		AppId:           d.AppId,
		Body:            d.Body,
	}
}
