// Package unreadable checks whether amqp091-go can read the content header of a message, and turns
// a message that it cannot read into a record that it can.
//
// The library ends the connection at a content header that it cannot read: with tables nested too
// deep, with too many elements in one, with an unknown field type, or larger than a frame. RabbitMQ
// accepts and delivers such messages. It delivers them again after each lost connection, so that
// one of them stops all consumers of its queue.
package unreadable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/twoqueue/twoqueue/bridge/internal/limits"
)

// The headers of a record. Package wire describes them.
const (
	Header       = "x-bridge-unreadable"    // why the content header cannot be read
	IDHeader     = "x-bridge-unreadable-id" // the message ID, if it can be read
	RecordHeader = "x-bridge-dead-record"   // the body is a record of this format
	RecordFormat = "1"
	ContentType  = "application/vnd.twoqueue.record"
)

const (
	headerFrame = 2
	bodyFrame   = 3
	frameEnd    = 0xCE
	frameBytes  = 8         // of a frame without its payload
	fixed       = 12        // of a content header before its properties: class, weight, size of the body
	chunk       = 128 << 10 // size of a frame if there is no limit
)

// Check returns why the library cannot read a content header, given the payload of its frame, and
// the message ID if it can be read. Nil: the library can read it. maxFrame is the largest frame
// that the library reads, 0 for any.
func Check(payload []byte, maxFrame int) (id string, why error) {
	if len(payload) < fixed {
		return "", nil // no content header; the library reports that
	}
	r := reader{b: payload[fixed:]}
	id = r.properties()
	if tooLarge := maxFrame > 0 && len(payload)+frameBytes > maxFrame; tooLarge && r.err == nil {
		r.err = fmt.Errorf("have %d bytes: more than a frame of this connection, %d", len(payload), maxFrame)
	}
	switch {
	case r.err == nil:
		return id, nil
	case id == "":
		return "", fmt.Errorf("headers and properties cannot be read: %w", r.err)
	}
	return id, fmt.Errorf("headers and properties of message %s cannot be read: %w", strconv.QuoteToASCII(id), r.err)
}

// AppendRecord appends the frames that begin a readable message: its content header, and the first part
// of its body. The frames of the unreadable message's own body must follow. The whole body is then the
// record of the unreadable message. part is the size of the first part.
func AppendRecord(frames []byte, channel [2]byte, payload []byte, maxFrame int, id string, why error) (_ []byte, part int) {
	order := binary.BigEndian
	properties, size := payload[fixed:], order.Uint64(payload[4:])
	record := order.AppendUint32(nil, uint32(len(properties)))
	record = order.AppendUint32(append(record, properties...), uint32(size))

	var table []byte
	for _, header := range [...][2]string{{RecordHeader, RecordFormat}, {Header, why.Error()}, {IDHeader, id}} {
		if header[1] == "" {
			continue
		}
		table = append(append(table, byte(len(header[0]))), header[0]...)
		table = append(order.AppendUint32(append(table, 'S'), uint32(len(header[1]))), header[1]...)
	}
	const contentTypeAndHeaders = 0xA000
	content := order.AppendUint64(append([]byte(nil), payload[:4]...), uint64(len(record))+size)
	content = order.AppendUint16(content, contentTypeAndHeaders)
	content = append(append(content, byte(len(ContentType))), ContentType...)
	content = append(order.AppendUint32(content, uint32(len(table))), table...)

	frames = appendFrame(frames, headerFrame, channel, content)
	most := chunk
	if maxFrame > 0 {
		most = maxFrame - frameBytes
	}
	for rest := record; len(rest) > 0; {
		n := min(most, len(rest))
		frames, rest = appendFrame(frames, bodyFrame, channel, rest[:n]), rest[n:]
	}
	return frames, len(record)
}

func appendFrame(b []byte, kind byte, channel [2]byte, payload []byte) []byte {
	b = binary.BigEndian.AppendUint32(append(b, kind, channel[0], channel[1]), uint32(len(payload)))
	return append(append(b, payload...), frameEnd)
}

// A reader parses as the library does, and keeps nothing. It refuses a few things that the library
// accepts: a value without content at the end of a list, a list that its container cuts off, and a
// table with repeated names if it has more than limits.MaxElements fields.
type reader struct {
	b   []byte
	err error
}

var errCutOff = errors.New("a value is cut off")

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail(errCutOff)
		return nil
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) number(n uint64) (value uint64) {
	for _, b := range r.take(n) {
		value = value<<8 | uint64(b)
	}
	return value
}

func (r *reader) short() []byte { return r.take(r.number(1)) }
func (r *reader) long() []byte  { return r.take(r.number(4)) }

// properties parses all properties, and returns the message ID if it can be read. It skips bytes
// after the properties, as the library does.
func (r *reader) properties() (id string) {
	const short, headers, octet, timestamp, messageID = 's', 'h', 'o', 't', 'i'
	flags := r.number(2)
	var inHeaders error
	for i, kind := range [...]byte{short, short, headers, octet, octet, short, short, short, messageID, timestamp, short, short, short, short} {
		if flags&(0x8000>>i) == 0 {
			continue
		}
		switch kind {
		case short:
			r.short()
		case messageID:
			id = string(r.short())
		case octet:
			r.take(1)
		case timestamp:
			r.take(8)
		case headers:
			inner := reader{b: r.long()}
			inner.fields(true, 0)
			inHeaders = inner.err
		}
	}
	if inHeaders != nil {
		r.err = inHeaders
	}
	return id
}

// fields parses the content of a table, whose fields have names, or of a list.
func (r *reader) fields(names bool, depth int) {
	if depth > limits.MaxDepth {
		r.fail(fmt.Errorf("tables and lists are nested more than %d deep", limits.MaxDepth))
	}
	for n := 0; len(r.b) > 0; n++ {
		if n == limits.MaxElements {
			r.fail(fmt.Errorf("a table or list has more than %d elements", limits.MaxElements))
			return
		}
		if names {
			r.short()
		}
		r.field(depth)
	}
}

func (r *reader) field(depth int) {
	kind := byte(r.number(1))
	if width, fixed := limits.Width(kind); fixed {
		r.take(width)
		return
	}
	switch kind {
	case 'S', 'x':
		r.long()
	case 'F', 'A':
		inner := reader{b: r.long()}
		inner.fields(kind == 'F', depth+1)
		if inner.err != nil {
			r.fail(inner.err)
		}
	default:
		if r.err == nil {
			r.fail(fmt.Errorf("a value is of the unknown type 0x%02x", kind))
		}
	}
}
