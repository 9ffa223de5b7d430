package wire_test

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// A gate is a proxy that lets a number of AMQP frames of each connection through
// and then nothing more: a network that dies at an exact point. (The handshake is
// three frames in either direction: start, tune, open.)
type gate struct {
	upstream          string
	requests, replies int // how many frames pass, < 0 for all

	listener net.Listener
	running  sync.WaitGroup
	mu       sync.Mutex
	conns    []net.Conn
	closed   bool
}

// through starts the gate and returns the URL that leads through it.
func (g *gate) through(t *testing.T, amqpURL string) string {
	t.Helper()
	rest := amqpURL[strings.Index(amqpURL, "@")+1:]
	g.upstream = rest[:strings.Index(rest, "/")]
	var err error
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
	return strings.Replace(amqpURL, g.upstream, g.listener.Addr().String(), 1)
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
				pass(server, client, g.requests)
			}
			_ = server.Close()
		})
		g.running.Go(func() {
			pass(client, server, g.replies)
			_ = client.Close()
		})
	}
}

// pass copies n frames, and reads on until the connection ends.
func pass(to io.Writer, from io.Reader, n int) {
	head := make([]byte, 7) // type, channel, size
	for ; n != 0; n-- {
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		if _, err := to.Write(head); err != nil {
			return
		}
		const end = 1
		if _, err := io.CopyN(to, from, int64(binary.BigEndian.Uint32(head[3:]))+end); err != nil {
			return
		}
	}
	_, _ = io.Copy(io.Discard, from)
}
