package wire

import (
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
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
