package wire

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/unreadable"
)

// HeaderGroup marks a staged message whose body is a sequence of records, and names their format:
// "1". Such a group also has the header x-bridge-ledger, and may have x-bridge-staged-at and
// x-bridge-restaged, which apply to all members. Its message-id has no meaning.
const HeaderGroup = "x-bridge-group"

// headerUnreadable marks an unreadable message, and gives the reason: here a member of a group,
// elsewhere a message that a bridge.Connection has replaced by its record.
const headerUnreadable = unreadable.Header

const (
	groupFormat      = "1"
	groupContentType = "application/vnd.twoqueue.group"
	// MaxMembers bounds the records in a group, and so the work and memory that one delivery costs
	// a verifier.
	MaxMembers = 1000
)

// Group makes one staged message from the records of several messages, which may belong to
// different transactions. It costs the broker one message, and each member is judged by itself.
// Pass 1 to 1000 records; Members reads no other number.
func Group(ledger uuid.UUID, records ...[]byte) amqp.Publishing {
	return amqp.Publishing{
		MessageId:    uuid.Must(uuid.NewV7()).String(),
		ContentType:  groupContentType,
		DeliveryMode: amqp.Persistent,
		Headers:      amqp.Table{HeaderGroup: groupFormat, HeaderLedger: ledger.String()},
		Body:         slices.Concat(records...),
	}
}

// Alone returns the message in record as a staged message of its own, outside any group.
// The body is shared with record. The error wraps bridge.ErrMalformed.
func Alone(ledger uuid.UUID, record []byte) (amqp.Publishing, error) {
	d, err := onlyMember(ledger, record)
	if err != nil {
		return amqp.Publishing{}, err
	}
	return Republished(d), nil
}

// Republished returns a delivered message to be published once more: persistent, and without
// expiration and user-id, which a broker would act on. Body and headers are shared with d.
func Republished(d amqp.Delivery) amqp.Publishing {
	return amqp.Publishing{
		Headers:         d.Headers,
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

// ReadRecord reads the record of a message of a ledger, such as a carried one. The error wraps
// ErrMalformed.
func ReadRecord(ledger uuid.UUID, record []byte) (Staged, error) {
	alone, err := onlyMember(ledger, record)
	if err != nil {
		return Staged{}, err
	}
	return Parse(alone)
}

// onlyMember reads a record as the one member of a group.
func onlyMember(ledger uuid.UUID, record []byte) (amqp.Delivery, error) {
	group := Group(ledger, record)
	alone, err := Members(amqp.Delivery{Headers: group.Headers, Body: record})
	switch {
	case err != nil:
		return amqp.Delivery{}, err
	case len(alone) != 1:
		return amqp.Delivery{}, fmt.Errorf("%w: %d records instead of one", bridge.ErrMalformed, len(alone))
	}
	if text, ok := alone[0].Headers[headerUnreadable]; ok {
		return amqp.Delivery{}, fmt.Errorf("%w: %v", bridge.ErrMalformed, text)
	}
	return alone[0], nil
}

// Members returns the members of a group, each as if it had been delivered alone. It returns any
// other staged message itself. An unreadable member has its record as the body, and the error of
// Parse gives the reason. If not even the members can be separated, the error wraps ErrMalformed.
// The bodies are shared with d.
func Members(d amqp.Delivery) ([]amqp.Delivery, error) {
	if _, ok := d.Headers[HeaderGroup]; !ok {
		return []amqp.Delivery{d}, nil
	}
	members, err := members(d)
	if err != nil {
		return nil, fmt.Errorf("%w: group: %w", bridge.ErrMalformed, err)
	}
	return members, nil
}

func members(d amqp.Delivery) ([]amqp.Delivery, error) {
	format, err := stringHeader(d.Headers, HeaderGroup, true)
	if err != nil {
		return nil, err
	}
	if format != groupFormat {
		return nil, fmt.Errorf("header %s: format %s is not known", HeaderGroup, strconv.Quote(format))
	}
	if len(d.Body) == 0 {
		return nil, errors.New("has no members")
	}
	var members []amqp.Delivery
	for rest := d.Body; len(rest) > 0; {
		if len(members) == MaxMembers {
			return nil, fmt.Errorf("has more than %d members", MaxMembers)
		}
		record := rest
		properties, body, left, ok := cutRecord(rest)
		if !ok {
			return nil, fmt.Errorf("member %d is cut short", len(members)+1)
		}
		rest = left
		m, err := readRecord(properties, body)
		if err != nil { // the other members stay readable
			m = amqp.Delivery{
				Headers: amqp.Table{headerUnreadable: err.Error()},
				Body:    record[:len(record)-len(rest)],
			}
		}
		if m.Headers == nil {
			m.Headers = amqp.Table{}
		}
		for _, name := range [...]string{HeaderLedger, HeaderStagedAt, HeaderRestaged} {
			if value, ok := d.Headers[name]; ok {
				m.Headers[name] = value
			}
		}
		m.DeliveryTag, m.Redelivered = d.DeliveryTag, d.Redelivered
		members = append(members, m)
	}
	return members, nil
}
