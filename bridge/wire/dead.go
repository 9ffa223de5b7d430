package wire

import (
	"fmt"
	"maps"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/unreadable"
)

// The headers that a verifier adds to a message in the dead queue.
const (
	HeaderDeadReason   = "x-bridge-dead-reason"   // one of DeadReasons
	HeaderDeadText     = "x-bridge-dead-text"     // the reason in words
	HeaderDeadVerdict  = "x-bridge-dead-verdict"  // Committed's text, or "unknown" if it could not be judged
	HeaderDeadAttempts = "x-bridge-dead-attempts" // how many attempts to forward it failed
	HeaderDeadAt       = "x-bridge-dead-at"       // RFC 3339, UTC
)

// HeaderDeadRecord marks a dead letter whose body is the record of the message, and names
// the record's format: "1". OpenDead reads it.
const HeaderDeadRecord = unreadable.RecordHeader

// deadHeaders are the headers on every dead letter of a verifier.
var deadHeaders = []string{HeaderDeadReason, HeaderDeadText, HeaderDeadVerdict, HeaderDeadAttempts, HeaderDeadAt}

const (
	deadRecordFormat      = unreadable.RecordFormat
	deadRecordContentType = unreadable.ContentType
)

// DeadLetter returns a delivered message as it is published to a dead queue, with the headers why
// added. Headers that the broker would act on (CC, BCC) are left out, and an expiration travels as
// x-bridge-expiration. A message that pretends to be a dead letter's record becomes a record itself
// (DeadRecord). If the broker or the client refuses the letter for its headers, publish its
// DeadRecord instead.
func DeadLetter(d amqp.Delivery, why amqp.Table) amqp.Publishing {
	headers := make(amqp.Table, len(d.Headers)+len(why))
	maps.Copy(headers, d.Headers)
	maps.Copy(headers, why)
	if d.Expiration != "" { // it must not act in the dead queue either
		headers[HeaderExpiration] = d.Expiration
	}
	delete(headers, "CC")
	delete(headers, "BCC")
	_, record := headers[HeaderDeadRecord]
	d.Headers = headers
	letter := Republished(d)
	if record && !Unreadable(d) { // a sender wrote this header
		return DeadRecord(letter)
	}
	return letter
}

// DeadRecord returns a dead letter whose own headers and properties leave no room for the
// verifier's headers. The verifier's stay headers, and the rest goes into the body, as a record.
// Unlike the record of a group's member it has the header x-bridge-ledger, with any value, and may
// have more properties.
func DeadRecord(letter amqp.Publishing) amqp.Publishing {
	inner, outer := make(amqp.Table, len(letter.Headers)), amqp.Table{HeaderDeadRecord: deadRecordFormat}
	for name, value := range letter.Headers {
		if slices.Contains(deadHeaders, name) {
			outer[name] = value
		} else {
			inner[name] = value
		}
	}
	letter.Headers = inner
	return amqp.Publishing{
		MessageId:    letter.MessageId,
		ContentType:  deadRecordContentType,
		DeliveryMode: amqp.Persistent,
		Headers:      outer,
		Body:         encodeRecord(letter),
	}
}

// Unreadable reports whether d stands for a message whose headers and properties amqp091-go cannot
// read. A bridge.Connection delivers the record of such a message: d.Body is the body of a
// DeadRecord, and the error of Parse gives the reason. (If a sender imitates such a delivery, it is
// dead-lettered as malformed, nothing else.)
func Unreadable(d amqp.Delivery) bool {
	_, why := d.Headers[headerUnreadable]
	return why && d.Headers[HeaderDeadRecord] == deadRecordFormat
}

// maxDeadDepth bounds the nesting of headers that OpenDead reads: any program may have written
// them.
const maxDeadDepth = 1000

// OpenDead reverses DeadRecord: it returns the message from the body, with the verifier's headers
// added. It returns any other message unchanged. The error wraps ErrMalformed. The body is shared
// with d.
func OpenDead(d amqp.Delivery) (amqp.Delivery, error) {
	format, ok := d.Headers[HeaderDeadRecord]
	if !ok {
		return d, nil
	}
	if format != deadRecordFormat {
		return d, fmt.Errorf("%w: header %s: format %v is not known", bridge.ErrMalformed, HeaderDeadRecord, format)
	}
	m, err := onlyRecord(d.Body, maxDeadDepth)
	if err != nil {
		return d, fmt.Errorf("%w: dead letter: %w", bridge.ErrMalformed, err)
	}
	headers := make(amqp.Table, len(m.Headers)+len(d.Headers))
	maps.Copy(headers, m.Headers)
	for name, value := range d.Headers {
		if name != HeaderDeadRecord {
			headers[name] = value
		}
	}
	m.Headers = headers
	m.Acknowledger, m.DeliveryTag, m.Redelivered = d.Acknowledger, d.DeliveryTag, d.Redelivered
	return m, nil
}

// HeaderDroppedAt is on a message in the audit queue: the time when a verifier dropped it, RFC
// 3339, UTC.
const HeaderDroppedAt = "x-bridge-dropped-at"

// The reasons for which a verifier puts a message into the dead queue.
const (
	DeadMalformed  = "malformed"   // does not follow the wire format
	DeadForeign    = "foreign"     // belongs to another ledger
	DeadNotAllowed = "not-allowed" // committed, but its target is not on the allow-list
	DeadRefused    = "refused"     // committed, but the broker refused it permanently
	DeadUnroutable = "unroutable"  // committed, but its target was missing for too long
	DeadFull       = "full"        // committed, but an exchange nacked it too often: one of its queues is full
	DeadSwept      = "swept"       // absent, but its row may have been removed as an orphan
)

// DeadReasons returns all reasons.
func DeadReasons() []string {
	return []string{DeadMalformed, DeadForeign, DeadNotAllowed, DeadRefused, DeadUnroutable, DeadFull, DeadSwept}
}
