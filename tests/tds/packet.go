package tds

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"unicode/utf16"
)

// The types of messages ([MS-TDS] 2.2.3.1.1).
const (
	sqlBatch    = 1
	rpcRequest  = 3
	reply       = 4
	attention   = 6
	tranManager = 14
	login7      = 16
	prelogin    = 18
)

// Bits of a packet's status ([MS-TDS] 2.2.3.1.2).
const (
	endOfMessage    = 0x01
	resetConnection = 0x08
)

const (
	headerSize = 8
	packetSize = 4096
)

type message struct {
	kind  byte
	reset bool
	body  []byte
}

func readMessage(from io.Reader) (m message, err error) {
	for {
		var header [headerSize]byte
		if _, err := io.ReadFull(from, header[:]); err != nil {
			return m, err
		}
		size := int(binary.BigEndian.Uint16(header[2:]))
		if size < headerSize {
			return m, fmt.Errorf("packet of %d bytes", size)
		}
		part := make([]byte, size-headerSize)
		if _, err := io.ReadFull(from, part); err != nil {
			return m, err
		}
		m.kind = header[0]
		m.reset = m.reset || header[1]&resetConnection != 0
		m.body = append(m.body, part...)
		if header[1]&endOfMessage != 0 {
			return m, nil
		}
	}
}

// writeMessage sends a reply. If it is not complete, the client waits for more.
func writeMessage(to io.Writer, spid int, body []byte, complete bool) error {
	var out []byte
	for number := byte(1); ; number++ {
		part := body[:min(len(body), packetSize-headerSize)]
		body = body[len(part):]
		var status byte
		if len(body) == 0 && complete {
			status = endOfMessage
		}
		out = append(out, reply, status)
		out = binary.BigEndian.AppendUint16(out, uint16(headerSize+len(part)))
		out = binary.BigEndian.AppendUint16(out, uint16(spid))
		out = append(out, number, 0)
		out = append(out, part...)
		if len(body) == 0 {
			_, err := to.Write(out)
			return err
		}
	}
}

var errShort = errors.New("message ends too early")

// A decoder decodes a message. After the first error all values are zero.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) bytes(n int) []byte {
	if n > len(d.rest) || d.err != nil {
		if d.err == nil {
			d.err = errShort
		}
		return make([]byte, min(n, 1<<16))
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) byte() byte     { return d.bytes(1)[0] }
func (d *decoder) uint16() uint16 { return binary.LittleEndian.Uint16(d.bytes(2)) }
func (d *decoder) uint32() uint32 { return binary.LittleEndian.Uint32(d.bytes(4)) }
func (d *decoder) uint64() uint64 { return binary.LittleEndian.Uint64(d.bytes(8)) }

// name reads a B_VARCHAR.
func (d *decoder) name() string { return fromUTF16(d.bytes(2 * int(d.byte()))) }

// headers reads the headers of a request and returns the descriptor of the request's transaction
// ([MS-TDS] 2.2.5.3).
func (d *decoder) headers() (transaction uint64) {
	all := decoder{rest: d.bytes(int(d.uint32()) - 4), err: d.err}
	for len(all.rest) > 0 && all.err == nil {
		one := decoder{rest: all.bytes(int(all.uint32()) - 4)}
		if one.uint16() == 2 {
			transaction = one.uint64()
		}
	}
	if all.err != nil {
		d.err = all.err
	}
	return transaction
}

func fromUTF16(b []byte) string {
	units := make([]uint16, len(b)/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(b[2*i:])
	}
	return string(utf16.Decode(units))
}

func toUTF16(s string) (b []byte) {
	for _, unit := range utf16.Encode([]rune(s)) {
		b = binary.LittleEndian.AppendUint16(b, unit)
	}
	return b
}
