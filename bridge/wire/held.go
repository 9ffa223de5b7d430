package wire

import (
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/internal/limits"
)

// The memory that a verifier needs for a message in addition to its bytes, on a machine of 64 bits
// (measured with Go 1.26: TestHeldIsTheSizeInTheHeap in package verifier).
const (
	messageHeld = 2 << 10 // a message without headers, decoded and parsed, with its entries in lists
	tableHeld   = 320     // a table or a list in the headers, with room for its first fields
	fieldHeld   = 180     // a field of the headers, in both the delivery's and the receiver's table
	nestedHeld  = 100     // a field of a table inside them
	elementHeld = 40      // an element of a list
	textHeld    = 32      // a string or bytes, in addition to its bytes
)

// Held returns about how many bytes of memory a verifier needs for a delivery: decoded, and if it
// is a group, split into members. That can be fifty times its bytes on the wire. Held decodes
// nothing.
func Held(d amqp.Delivery) int {
	held := messageHeld + len(d.Body) + heldFields(d.Headers, fieldHeld)
	for _, text := range [...]string{
		d.ContentType, d.ContentEncoding, d.CorrelationId, d.ReplyTo, d.Expiration, d.MessageId, d.Type, d.UserId, d.AppId,
		d.Exchange, d.RoutingKey,
	} {
		held += len(text)
	}
	if _, group := d.Headers[HeaderGroup]; !group {
		return held
	}
	for n, rest := 0, d.Body; len(rest) > 0 && n < MaxMembers; n++ {
		properties, _, left, ok := cutRecord(rest)
		if !ok { // then the whole group is dead-lettered
			break
		}
		held, rest = held+messageHeld, left
		if len(properties) <= maxProperties {
			held += heldProperties(properties)
		}
	}
	return held
}

func heldFields(t amqp.Table, each int) int {
	held := 0
	for name, value := range t {
		held += each + len(name) + heldValue(value)
	}
	return held
}

func heldValue(value any) int {
	switch v := value.(type) {
	case string:
		return textHeld + len(v)
	case []byte:
		return textHeld + len(v)
	case amqp.Table:
		return tableHeld + heldFields(v, nestedHeld)
	case []any:
		held := tableHeld
		for _, element := range v {
			held += elementHeld + heldValue(element)
		}
		return held
	}
	return 0
}

// heldProperties returns the memory for the properties of a record.
func heldProperties(properties []byte) int {
	r := decoder{b: properties}
	held := len(properties)
	flags := r.uint16()
	for _, short := range [...]uint16{flagContentType, flagContentEncoding} {
		if flags&short != 0 {
			r.take(r.number(1))
		}
	}
	if flags&flagHeaders != 0 {
		held += heldEncoded(r.bytes(), true, fieldHeld)
	}
	return held
}

// heldEncoded returns the memory for the fields of a table, or the elements of a list, in addition
// to their bytes.
func heldEncoded(b []byte, named bool, each int) (held int) {
	r := decoder{b: b}
	for len(r.b) > 0 && !r.failed {
		held += each
		if named {
			r.take(r.number(1))
		}
		switch kind := r.uint8(); kind {
		case 'S', 'x':
			r.bytes()
			held += textHeld
		case 'F':
			held += tableHeld + heldEncoded(r.bytes(), true, nestedHeld)
		case 'A':
			held += tableHeld + heldEncoded(r.bytes(), false, elementHeld)
		default:
			width, _ := limits.Width(kind)
			r.take(width)
		}
	}
	return held
}
