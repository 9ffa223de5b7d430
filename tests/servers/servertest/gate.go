package servertest

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
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
	shut     func(Frame) bool
	reached  chan struct{} // closed at the first held frame
	once     sync.Once
	upstream string
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn
	closed bool
}

// NewGate starts a gate in front of the broker of a URL, and returns the URL of the gate. shut
// decides for each frame whether the gate holds it and all frames behind it. Several goroutines
// call shut.
func NewGate(t testing.TB, amqpURL string, shut func(Frame) bool) (g *Gate, through string) {
	t.Helper()
	address, err := url.Parse(amqpURL)
	if err != nil {
		t.Fatalf("parse the broker's URL: %v", err)
	}
	g = &Gate{shut: shut, reached: make(chan struct{}), upstream: address.Host}
	if g.listener, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		t.Fatalf("start gate: %v", err)
	}
	g.running.Go(g.accept)
	t.Cleanup(g.close)
	address.Host = g.listener.Addr().String()
	return g, address.String()
}

// Reached waits until the gate holds a frame.
func (g *Gate) Reached(t testing.TB) {
	t.Helper()
	Next(t, "the gate holds something", g.reached)
}

func (g *Gate) close() {
	_ = g.listener.Close()
	g.mu.Lock()
	g.closed = true
	for _, conn := range g.conns {
		_ = conn.Close()
	}
	g.mu.Unlock()
	g.running.Wait()
}

func (g *Gate) accept() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("tcp", g.upstream)
		if err != nil {
			_ = client.Close()
			continue
		}
		g.mu.Lock()
		g.conns = append(g.conns, client, server)
		if g.closed {
			_, _ = client.Close(), server.Close()
		}
		g.mu.Unlock()
		g.running.Go(func() {
			const protocolHeader = 8
			if _, err := io.CopyN(server, client, protocolHeader); err == nil {
				g.pass(server, client, false)
			}
			_ = server.Close()
		})
		g.running.Go(func() {
			g.pass(client, server, true)
			_ = client.Close()
		})
	}
}

// pass copies frames until the connection ends or a frame is held. Then it reads and discards the
// rest, so that the sending side notices nothing.
func (g *Gate) pass(to io.Writer, from io.Reader, reply bool) {
	const methodFrame, headSize, end = 1, 7, 1
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
		seen := Frame{Reply: reply, N: n}
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
