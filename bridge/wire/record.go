package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/internal/limits"
)

// maxProperties bounds the properties of a record, as a frame (128 KiB by default) bounds the
// properties of a message that travels alone, with room for the headers of the dead queue. Decoded
// they take many times their bytes.
const maxProperties = 100 << 10

// A record is a staged message in bytes, as it travels in a group and as its row carries it (the
// wire format, in the package's comment):
//
//	uint32  length of the properties
//	        the properties as in an AMQP 0-9-1 content header: flags, then values
//	uint32  length of the body
//	        the body
//
// Numbers are big-endian, as everywhere in AMQP. The header x-bridge-ledger is left out: the group
// has it, or the database that holds the record. (The records of a dead letter and of a delivery
// keep it: DeadRecord, EncodeDelivery.)

// The flags of a content header's properties.
const (
	flagContentType     = 0x8000
	flagContentEncoding = 0x4000
	flagHeaders         = 0x2000
	flagDeliveryMode    = 0x1000
	flagPriority        = 0x0800
	flagCorrelationID   = 0x0400
	flagReplyTo         = 0x0200
	flagExpiration      = 0x0100
	flagMessageID       = 0x0080
	flagTimestamp       = 0x0040
	flagType            = 0x0020
	flagUserID          = 0x0010
	flagAppID           = 0x0008
)

// EncodeRecord returns the record of a message made by Encode.
func EncodeRecord(staged amqp.Publishing) []byte { return encodeRecord(staged, HeaderLedger) }

func encodeRecord(p amqp.Publishing, except ...string) []byte {
	return appendRecord(make([]byte, 0, 8+limits.HeaderBytes(p)+len(p.Body)), p, except...)
}

// appendRecord appends the record of p, without the headers except.
func appendRecord(b []byte, p amqp.Publishing, except ...string) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0, 0, 0) // the length and the flags are filled in last
	var flags uint16
	short := func(flag uint16, value string) {
		if value != "" {
			flags |= flag
			b = appendShort(b, value)
		}
	}
	octet := func(flag uint16, value uint8) {
		if value != 0 {
			flags |= flag
			b = append(b, value)
		}
	}
	short(flagContentType, p.ContentType)
	short(flagContentEncoding, p.ContentEncoding)
	if p.Headers != nil {
		flags |= flagHeaders
		b = appendTable(b, p.Headers, except...)
	}
	octet(flagDeliveryMode, p.DeliveryMode)
	octet(flagPriority, p.Priority)
	short(flagCorrelationID, p.CorrelationId)
	short(flagReplyTo, p.ReplyTo)
	short(flagExpiration, p.Expiration)
	short(flagMessageID, p.MessageId)
	if !p.Timestamp.IsZero() {
		flags |= flagTimestamp
		b = binary.BigEndian.AppendUint64(b, uint64(p.Timestamp.Unix()))
	}
	short(flagType, p.Type)
	short(flagUserID, p.UserId)
	short(flagAppID, p.AppId)
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	binary.BigEndian.PutUint16(b[start+4:], flags)
	return appendBytes(b, p.Body)
}

func appendShort(b []byte, value string) []byte {
	return append(append(b, uint8(len(value))), value...)
}

func appendBytes[T string | []byte](b []byte, value T) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

func appendTable(b []byte, t amqp.Table, except ...string) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	for name, value := range t {
		if !slices.Contains(except, name) {
			b = appendField(appendShort(b, name), value)
		}
	}
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

// appendField writes the types that amqp.Table's Validate allows, in the library's encoding.
func appendField(b []byte, value any) []byte {
	order := binary.BigEndian
	switch v := value.(type) {
	case nil:
		return append(b, 'V')
	case bool:
		if v {
			return append(b, 't', 1)
		}
		return append(b, 't', 0)
	case uint8:
		return append(b, 'B', v)
	case int8:
		return append(b, 'b', uint8(v))
	case int16:
		return order.AppendUint16(append(b, 's'), uint16(v))
	case uint16:
		return order.AppendUint16(append(b, 'u'), v)
	case int:
		return order.AppendUint32(append(b, 'I'), uint32(v))
	case int32:
		return order.AppendUint32(append(b, 'I'), uint32(v))
	case uint32:
		return order.AppendUint32(append(b, 'i'), v)
	case int64:
		return order.AppendUint64(append(b, 'l'), uint64(v))
	case float32:
		return order.AppendUint32(append(b, 'f'), math.Float32bits(v))
	case float64:
		return order.AppendUint64(append(b, 'd'), math.Float64bits(v))
	case amqp.Decimal:
		return order.AppendUint32(append(b, 'D', v.Scale), uint32(v.Value))
	case time.Time:
		return order.AppendUint64(append(b, 'T'), uint64(v.Unix()))
	case string:
		return appendBytes(append(b, 'S'), v)
	case []byte:
		return appendBytes(append(b, 'x'), v)
	case amqp.Table:
		return appendTable(append(b, 'F'), v)
	case []any:
		b = append(b, 'A')
		start := len(b)
		b = append(b, 0, 0, 0, 0)
		for _, element := range v {
			b = appendField(b, element)
		}
		order.PutUint32(b[start:], uint32(len(b)-start-4))
		return b
	default:
		panic(fmt.Sprintf("header of type %T was not validated", value))
	}
}

// cutRecord splits the first record off b.
func cutRecord(b []byte) (properties, body, rest []byte, ok bool) {
	r := decoder{b: b}
	properties = r.bytes()
	body = r.bytes()
	return properties, body, r.b, !r.failed
}

// readRecord reads a record as a delivery, if it is no larger than a message that travels alone.
// The body is shared.
func readRecord(properties, body []byte) (d amqp.Delivery, err error) {
	if len(properties) > maxProperties {
		return d, fmt.Errorf("%d bytes of properties: at most %d", len(properties), maxProperties)
	}
	if d, err = decodeRecord(properties, body, limits.MaxDepth); err != nil {
		return d, err
	}
	// HeaderBytes estimates more bytes for many small headers than they have. A message beyond the
	// limit by that estimate could not be dead-lettered with its headers.
	if size := limits.HeaderBytes(amqp.Publishing{Headers: d.Headers}); size > maxProperties {
		return amqp.Delivery{Body: body}, fmt.Errorf("%d headers count as %d bytes: at most %d", len(d.Headers), size, maxProperties)
	}
	return d, nil
}

// onlyRecord reads a record with nothing behind it.
func onlyRecord(b []byte, deepest int) (amqp.Delivery, error) {
	properties, body, rest, ok := cutRecord(b)
	if !ok || len(rest) > 0 {
		return amqp.Delivery{}, errors.New("not one record")
	}
	return decodeRecord(properties, body, deepest)
}

// decodeRecord reads a record whose tables and arrays are nested at most deepest deep.
func decodeRecord(properties, body []byte, deepest int) (d amqp.Delivery, err error) {
	d.Body = body
	r := decoder{b: properties, deepest: deepest}
	flags := r.uint16()
	short := func(flag uint16) (value string) {
		if flags&flag != 0 {
			value = r.short()
		}
		return value
	}
	octet := func(flag uint16) (value uint8) {
		if flags&flag != 0 {
			value = r.uint8()
		}
		return value
	}
	d.ContentType = short(flagContentType)
	d.ContentEncoding = short(flagContentEncoding)
	if flags&flagHeaders != 0 {
		d.Headers = r.table(0)
	}
	d.DeliveryMode = octet(flagDeliveryMode)
	d.Priority = octet(flagPriority)
	d.CorrelationId = short(flagCorrelationID)
	d.ReplyTo = short(flagReplyTo)
	d.Expiration = short(flagExpiration)
	d.MessageId = short(flagMessageID)
	if flags&flagTimestamp != 0 {
		d.Timestamp = time.Unix(int64(r.uint64()), 0)
	}
	d.Type = short(flagType)
	d.UserId = short(flagUserID)
	d.AppId = short(flagAppID)
	switch {
	case r.failed:
		return d, errors.New("properties are not an AMQP content header")
	case len(r.b) > 0:
		return d, fmt.Errorf("%d bytes too many in the properties", len(r.b))
	}
	return d, nil
}

// A decoder reads AMQP's encoding. At the first bytes that it cannot read it fails, and returns
// zeros from then on.
type decoder struct {
	b       []byte
	failed  bool
	deepest int
}

func (r *decoder) take(n uint64) []byte {
	if r.failed || n > uint64(len(r.b)) {
		r.failed = true
		return nil
	}
	taken := r.b[:n:n]
	r.b = r.b[n:]
	return taken
}

// number reads a big-endian number of n bytes.
func (r *decoder) number(n uint64) (value uint64) {
	for _, b := range r.take(n) {
		value = value<<8 | uint64(b)
	}
	return value
}

func (r *decoder) uint8() uint8   { return uint8(r.number(1)) }
func (r *decoder) uint16() uint16 { return uint16(r.number(2)) }
func (r *decoder) uint32() uint32 { return uint32(r.number(4)) }
func (r *decoder) uint64() uint64 { return r.number(8) }
func (r *decoder) short() string  { return string(r.take(r.number(1))) }
func (r *decoder) bytes() []byte  { return r.take(r.number(4)) }

// nested returns a decoder of the content of a table or an array.
func (r *decoder) nested(depth int) decoder {
	b := r.bytes()
	return decoder{b: b, failed: r.failed || depth > r.deepest, deepest: r.deepest}
}

func (r *decoder) table(depth int) amqp.Table {
	inner := r.nested(depth)
	t := amqp.Table{}
	for len(inner.b) > 0 && !inner.failed {
		name := inner.short()
		t[name] = inner.field(depth + 1)
	}
	r.failed = inner.failed
	return t
}

func (r *decoder) array(depth int) []any {
	inner := r.nested(depth)
	list := []any{}
	for len(inner.b) > 0 && !inner.failed {
		list = append(list, inner.field(depth+1))
	}
	r.failed = inner.failed
	return list
}

func (r *decoder) field(depth int) any {
	switch r.uint8() {
	case 'V':
		return nil
	case 't':
		return r.uint8() != 0
	case 'B':
		return r.uint8()
	case 'b':
		return int8(r.uint8())
	case 's':
		return int16(r.uint16())
	case 'u':
		return r.uint16()
	case 'I':
		return int32(r.uint32())
	case 'i':
		return r.uint32()
	case 'l':
		return int64(r.uint64())
	case 'f':
		return math.Float32frombits(r.uint32())
	case 'd':
		return math.Float64frombits(r.uint64())
	case 'D':
		return amqp.Decimal{Scale: r.uint8(), Value: int32(r.uint32())}
	case 'T':
		return time.Unix(int64(r.uint64()), 0)
	case 'S':
		return string(r.bytes())
	case 'x':
		return r.bytes()
	case 'F':
		return r.table(depth)
	case 'A':
		return r.array(depth)
	}
	r.failed = true
	return nil
}
