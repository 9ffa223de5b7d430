package servertest

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
)

// A Frame is a frame of AMQP 0-9-1 that passes a Gate.
type Frame struct {
	Reply  bool   // from the broker to the client
	N      int    // number of earlier frames in this direction of the connection
	Method Method // zero if the frame has none
}

// A Method is the class and number of an AMQP method.
type Method [2]uint16

// Methods at which tests hold frames.
var (
	BasicAck = Method{60, 80} // an ack from the client, a confirm from the broker
	BasicQos = Method{60, 10}
)

// A Gate is a proxy in front of a broker. In each direction of a connection it passes frames up to
// a certain one, and then nothing more: a network that dies at an exact point, or a point at which
// to kill a process. A Valve in contrast does not distinguish frames.
type Gate struct {
	shut    func(Frame) bool
	reached chan struct{} // closed at the first held frame
	once    sync.Once
}

// NewGate starts a gate in front of the broker of a URL, and returns the URL of the gate. shut
// decides for each frame whether the gate holds it and all frames behind it. Several goroutines
// call shut.
func NewGate(t testing.TB, amqpURL string, shut func(Frame) bool) (g *Gate, through string) {
	t.Helper()
	g = &Gate{shut: shut, reached: make(chan struct{})}
	proxy := &Valve{copy: g.pass}
	return g, proxy.through(t, amqpURL)
}

// Reached waits until the gate holds a frame.
func (g *Gate) Reached(t testing.TB) {
	t.Helper()
	Next(t, "the gate holds something", g.reached)
}

// pass copies frames until the connection ends or a frame is held. Then it reads and discards the
// rest, so that the sending side notices nothing.
func (g *Gate) pass(_ *pair, d direction, to, from net.Conn) {
	const protocolHeader, methodFrame, headSize, end = 8, 1, 7, 1
	if d == requests {
		if _, err := io.CopyN(to, from, protocolHeader); err != nil {
			return
		}
	}
	for n := 0; ; n++ {
		frame := make([]byte, headSize) // type, channel, size
		if _, err := io.ReadFull(from, frame); err != nil {
			return
		}
		size := int(binary.BigEndian.Uint32(frame[3:]))
		frame = append(frame, make([]byte, size+end)...)
		if _, err := io.ReadFull(from, frame[headSize:]); err != nil {
			return
		}
		seen := Frame{Reply: d == replies, N: n}
		if frame[0] == methodFrame && size >= 4 {
			seen.Method = Method{binary.BigEndian.Uint16(frame[headSize:]), binary.BigEndian.Uint16(frame[headSize+2:])}
		}
		if g.shut(seen) {
			g.once.Do(func() { close(g.reached) })
			_, _ = io.Copy(io.Discard, from)
			return
		}
		if _, err := to.Write(frame); err != nil {
			return
		}
	}
}
