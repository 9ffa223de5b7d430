package servertest

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// A Frame of AMQP 0-9-1, as a Gate sees it.
type Frame struct {
	Reply  bool   // from the broker to the client
	N      int    // how many have passed before in this direction of its connection
	Method Method // of a frame that has one
}

// A Method is an AMQP method's class and number.
type Method [2]uint16

// Methods at which tests hold something.
var (
	BasicAck = Method{60, 80} // of the client an ack, of the broker a confirm
	BasicQos = Method{60, 10}
)

// A Gate is a proxy before a broker that lets the frames of each connection through up
// to a certain one in a direction, and then nothing more in that direction: a network
// that dies at an exact point, or a point at which to kill a process. A Valve knows
// nothing of frames.
type Gate struct {
	shut     func(Frame) bool
	reached  chan struct{} // closed when something is held
	once     sync.Once
	upstream string
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn
	closed bool
}

// NewGate starts a gate before the broker of a URL, and returns the URL that leads
// through it. shut says of each frame whether it and all behind it are held. It is
// called by several goroutines.
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

// Reached waits until something is held.
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

// pass copies frames until the connection ends or one is held; then it reads on, so that the
// one who speaks notices nothing.
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
