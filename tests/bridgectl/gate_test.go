package bridgectl_test

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/stage"
)

// A method is an AMQP method's class and number.
type method [2]uint16

var (
	basicAck = method{60, 80} // from the client an ack, from the broker a confirm
	basicQos = method{60, 10}
)

// A gate is a proxy to the broker that holds back, in one direction, the first frame
// with a method and all that follows it on that connection: so a process can be killed
// at exactly that point.
type gate struct {
	upstream string
	replies  bool // holds in what the broker says, else in what the client says
	at       method
	held     chan struct{} // closed when it has held something

	listener net.Listener
	running  sync.WaitGroup
	once     sync.Once
	mu       sync.Mutex
	conns    []net.Conn
	closed   bool
}

// newGate starts a gate and returns the URL that leads through it.
func newGate(t *testing.T, amqpURL string, replies bool, at method) (*gate, string) {
	t.Helper()
	parsed, err := url.Parse(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{upstream: parsed.Host, replies: replies, at: at, held: make(chan struct{})}
	if g.listener, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	g.running.Go(g.accept)
	t.Cleanup(func() {
		_ = g.listener.Close()
		g.mu.Lock()
		g.closed = true
		for _, conn := range g.conns {
			_ = conn.Close()
		}
		g.mu.Unlock()
		g.running.Wait()
	})
	parsed.Host = g.listener.Addr().String()
	return g, parsed.String()
}

func (g *gate) accept() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
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
				g.pass(server, client, !g.replies)
			}
			_ = server.Close()
		})
		g.running.Go(func() {
			g.pass(client, server, g.replies)
			_ = client.Close()
		})
	}
}

// pass copies frames until the connection ends or, if it holds, up to the method.
func (g *gate) pass(to io.Writer, from io.Reader, holds bool) {
	const methodFrame, end = 1, 1
	head := make([]byte, 7) // type, channel, size
	for {
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		rest := make([]byte, int(binary.BigEndian.Uint32(head[3:]))+end)
		if _, err := io.ReadFull(from, rest); err != nil {
			return
		}
		if holds && head[0] == methodFrame && (method{binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])}) == g.at {
			g.once.Do(func() { close(g.held) })
			_, _ = io.Copy(io.Discard, from)
			return
		}
		if _, err := to.Write(append(head, rest...)); err != nil {
			return
		}
		head = head[:7]
	}
}

// await waits until the gate holds something.
func (g *gate) await(t *testing.T) {
	t.Helper()
	select {
	case <-g.held:
	case <-time.After(2 * stage.Patience):
		t.Fatal("the gate has nothing to hold")
	}
}
