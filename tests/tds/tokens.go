package tds

import (
	"encoding/binary"
	"fmt"
	"time"
)

// The tokens of a reply ([MS-TDS] 2.2.7).
const (
	tokenReturnStatus = 0x79
	tokenColumns      = 0x81
	tokenError        = 0xAA
	tokenLoginAck     = 0xAD
	tokenRow          = 0xD1
	tokenEnvironment  = 0xE3
	tokenDone         = 0xFD
	tokenDoneProc     = 0xFE
	tokenDoneInProc   = 0xFF
)

// Bits of the status of DONE ([MS-TDS] 2.2.7.6).
const (
	doneMore      = 0x01
	doneError     = 0x02
	doneCount     = 0x10
	doneAttention = 0x20
	doneSevere    = 0x100
)

// Kinds of changes of the environment ([MS-TDS] 2.2.7.9).
const (
	envDatabase   = 1
	envPacketSize = 4
	envBegin      = 8
	envCommit     = 9
	envRollback   = 10
	envReset      = 18
)

// A response builds a reply.
type response struct {
	body    []byte
	columns []column
	rows    uint64 // since describe
	late    int    // number of bytes of body after which the rest comes late

	limit    uint64 // of the rows of a result; 0: none
	textSize int    // limit of a value of any length; 0: none
}

type column struct {
	name string
	kind byte
}

// The types of results ([MS-TDS] 2.2.5.4).
const (
	kindGUID     = 0x24
	kindInt      = 0x26
	kindBit      = 0x68
	kindDateTime = 0x6F
	kindBinary   = 0xA5
	kindText     = 0xE7

	kindLong = 0 // the stand-in's own: binary of any length
)

var collation = []byte{0x09, 0x04, 0xD0, 0x00, 0x34} // SQL_Latin1_General_CP1_CI_AS

func (r *response) byte(b byte)     { r.body = append(r.body, b) }
func (r *response) uint16(n uint16) { r.body = binary.LittleEndian.AppendUint16(r.body, n) }
func (r *response) uint32(n uint32) { r.body = binary.LittleEndian.AppendUint32(r.body, n) }
func (r *response) uint64(n uint64) { r.body = binary.LittleEndian.AppendUint64(r.body, n) }

func (r *response) name(s string) {
	b := toUTF16(s)
	r.byte(byte(len(b) / 2))
	r.body = append(r.body, b...)
}

func (r *response) environment(kind byte, after, before []byte) {
	r.byte(tokenEnvironment)
	r.uint16(uint16(1 + 1 + len(after) + 1 + len(before)))
	r.byte(kind)
	for _, value := range [][]byte{after, before} {
		n := len(value)
		if kind == envDatabase || kind == envPacketSize {
			n /= 2 // counted in characters
		}
		r.byte(byte(n))
		r.body = append(r.body, value...)
	}
}

func (r *response) loginAck() {
	var ack response
	ack.byte(1)                                                     // Transact-SQL
	ack.body = binary.BigEndian.AppendUint32(ack.body, 0x74000004)  // TDS 7.4
	ack.name("stand-in for SQL Server")                             //
	ack.body = binary.BigEndian.AppendUint32(ack.body, 16<<24|1000) // version
	r.byte(tokenLoginAck)
	r.uint16(uint16(len(ack.body)))
	r.body = append(r.body, ack.body...)
}

func (r *response) error(e *sqlError) {
	var body response
	body.uint32(uint32(e.number))
	body.byte(1) // state
	body.byte(e.class)
	text := toUTF16(e.text)
	body.uint16(uint16(len(text) / 2))
	body.body = append(body.body, text...)
	body.name("stand-in")
	body.name("") // procedure
	body.uint32(1)
	r.byte(tokenError)
	r.uint16(uint16(len(body.body)))
	r.body = append(r.body, body.body...)
}

func (r *response) done(token byte, status uint16, count uint64) {
	r.byte(token)
	r.uint16(status)
	r.uint16(0) // command
	r.uint64(count)
}

func (r *response) returnStatus(n int32) {
	r.byte(tokenReturnStatus)
	r.uint32(uint32(n))
}

// describe begins a result.
func (r *response) describe(columns ...column) {
	r.columns, r.rows = columns, 0
	r.byte(tokenColumns)
	r.uint16(uint16(len(columns)))
	for _, c := range columns {
		r.uint32(0) // user type
		r.uint16(1) // nullable
		if c.kind == kindLong {
			r.byte(kindBinary)
			r.uint16(0xFFFF)
			r.name(c.name)
			continue
		}
		r.byte(c.kind)
		switch c.kind {
		case kindGUID:
			r.byte(16)
		case kindInt, kindDateTime:
			r.byte(8)
		case kindBit:
			r.byte(1)
		case kindBinary:
			r.uint16(8000)
		case kindText:
			r.uint16(8000)
			r.body = append(r.body, collation...)
		default:
			panic(fmt.Sprintf("column type %#x", c.kind))
		}
		r.name(c.name)
	}
}

// row adds a row to the result; nil is NULL.
func (r *response) row(values ...any) {
	if r.limit > 0 && r.rows >= r.limit {
		return
	}
	r.byte(tokenRow)
	r.rows++
	for i, value := range values {
		kind := r.columns[i].kind
		long := kind == kindBinary || kind == kindText
		var b []byte
		switch value := value.(type) {
		case nil:
			if kind == kindLong {
				r.uint64(1<<64 - 1) // [MS-TDS] 2.2.5.2.3
			} else if long {
				r.uint16(0xFFFF)
			} else {
				r.byte(0)
			}
			continue
		case int:
			b = binary.LittleEndian.AppendUint64(nil, uint64(value))
		case int64:
			b = binary.LittleEndian.AppendUint64(nil, uint64(value))
		case bool:
			b = []byte{0}
			if value {
				b[0] = 1
			}
		case time.Time:
			b = dateTime(value)
		case []byte:
			b = value
		case guid:
			b = value[:]
		case string:
			b = toUTF16(value)
		default:
			panic(fmt.Sprintf("value of type %T", value))
		}
		switch {
		case kind == kindLong:
			if r.textSize > 0 {
				b = b[:min(len(b), r.textSize)]
			}
			r.long(b)
			continue
		case long:
			r.uint16(uint16(len(b)))
		default:
			r.byte(byte(len(b)))
		}
		r.body = append(r.body, b...)
	}
}

// long writes a value of any length, in one part ([MS-TDS] 2.2.5.2.3).
func (r *response) long(b []byte) {
	r.uint64(uint64(len(b)))
	if len(b) > 0 {
		r.uint32(uint32(len(b)))
		r.body = append(r.body, b...)
	}
	r.uint32(0)
}

// dateTime encodes a time as days since 1900 and 1/300ths of a second.
func dateTime(t time.Time) []byte {
	since := t.UTC().Sub(time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC))
	days := since / (24 * time.Hour)
	b := binary.LittleEndian.AppendUint32(nil, uint32(days))
	return binary.LittleEndian.AppendUint32(b, uint32((since-days*24*time.Hour)*300/time.Second))
}
