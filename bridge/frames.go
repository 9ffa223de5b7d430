package bridge

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/twoqueue/twoqueue/bridge/internal/unreadable"
)

const (
	methodFrame = 1
	headerFrame = 2
	bodyFrame   = 3
)

// mostHeld bounds the capacity kept for the next content header.
const mostHeld = 256 << 10

// frames follows the frames that a broker sends. A frame has a type, a channel, a size, as many
// bytes, and an end (AMQP 0-9-1, section 2.3.5). A message is a method, a content header and a
// body. The library ends the connection at a content header that it cannot read. So frames holds
// each content header until it is whole, and replaces an unreadable message by its record (package
// wire).
type frames struct {
	max atomic.Int64 // size of the largest frame that the library reads; 0: any

	head [7]byte // type, channel and size of the present frame
	have int     // bytes of head that have come
	left int64   // bytes of the frame behind head that have not come yet
	held []byte  // the part of a content header's payload and end byte that has come
}

// follow appends to out the bytes that the library reads in place of p. It returns how many bytes
// of bodies are in it, and whether a method begins in p.
func (f *frames) follow(out, p []byte) (_ []byte, bodies int, begins bool) {
	for len(p) > 0 {
		if f.left == 0 {
			n := copy(f.head[f.have:], p)
			f.have, p = f.have+n, p[n:]
			if f.have < len(f.head) {
				break
			}
			const end = 1
			f.have, f.left = 0, int64(binary.BigEndian.Uint32(f.head[3:]))+end
			begins = begins || f.head[0] == methodFrame
			if f.head[0] != headerFrame {
				out = append(out, f.head[:]...)
			}
			continue
		}
		n := int(min(f.left, int64(len(p))))
		part := p[:n]
		f.left, p = f.left-int64(n), p[n:]
		switch f.head[0] {
		case headerFrame:
			if f.held = append(f.held, part...); f.left == 0 {
				var added int
				out, added = f.release(out)
				bodies += added
			}
			continue
		case bodyFrame:
			if bodies += n; f.left == 0 {
				bodies-- // the end
			}
		}
		out = append(out, part...)
	}
	return out, bodies, begins
}

// release appends the held content header, or the beginning of a record; added is how many of the
// appended bytes are body.
func (f *frames) release(out []byte) (_ []byte, added int) {
	payload, maxFrame := f.held[:len(f.held)-1], int(f.max.Load())
	if id, why := unreadable.Check(payload, maxFrame); why != nil {
		out, added = unreadable.AppendRecord(out, [2]byte(f.head[1:3]), payload, maxFrame, id, why)
	} else {
		out = append(append(out, f.head[:]...), f.held...)
	}
	if f.held = f.held[:0]; cap(f.held) > mostHeld {
		f.held = nil
	}
	return out, added
}
