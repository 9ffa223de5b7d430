package wire

import (
	"regexp"
	"strconv"
	"sync/atomic"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// A Packing bounds the groups into which records are packed.
type Packing struct {
	Records int // most records in a group, at most MaxMembers
	Bytes   int // most bytes of a group's records; a larger record travels alone
}

// Fits reports whether a number of records with a total size may be one group.
func (p Packing) Fits(records, size int) bool { return records <= p.Records && size <= p.Bytes }

// First returns the number of records in the first group of Pack, and their size. There must be a
// record.
func (p Packing) First(records [][]byte) (n, size int) {
	n, size = 1, len(records[0])
	for n < len(records) && p.Fits(n+1, size+len(records[n])) {
		size += len(records[n])
		n++
	}
	return n, size
}

// Pack returns the staged messages that contain records, in their order: each is a group of as many
// records as fit, or, for a single record, the staged message without a group. The error wraps
// bridge.ErrMalformed if a single record is unreadable.
func (p Packing) Pack(ledger uuid.UUID, records [][]byte) (out []amqp.Publishing, _ error) {
	for len(records) > 0 {
		n, _ := p.First(records)
		if n > 1 {
			out = append(out, Group(ledger, records[:n]...))
		} else if alone, err := Alone(ledger, records[0]); err == nil {
			out = append(out, alone)
		} else {
			return nil, err
		}
		records = records[n:]
	}
	return out, nil
}

// A SizeLimit is the max_message_size of a broker, as its last refusal named it. The zero value knows
// no limit. It does not notice when the limit is raised. Any number of goroutines may use it.
type SizeLimit struct{ bytes atomic.Int64 }

// Learn notes the limit if err is the broker's refusal of a message that is too large.
func (l *SizeLimit) Learn(err error) {
	refusal := bridge.Refusal(err)
	if refusal == nil || refusal.Code != amqp.PreconditionFailed {
		return
	}
	if number := maxSize.FindStringSubmatch(refusal.Reason); number != nil {
		if bytes, err := strconv.ParseInt(number[1], 10, 64); err == nil {
			l.bytes.Store(bytes)
		}
	}
}

// maxSize matches RabbitMQ's answer, such as: message size 20436 is larger than configured max size
// 16000.
var maxSize = regexp.MustCompile(`larger than configured max size (\d+)`)

// Bound returns the packing whose groups the broker accepts.
func (l *SizeLimit) Bound(p Packing) Packing {
	if most := int(l.bytes.Load()); most > 0 {
		p.Bytes = min(p.Bytes, most-most/10) // a group has some bytes more than its records
	}
	return p
}
