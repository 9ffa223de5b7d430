package servertest

import (
	"net"
	"sync"
	"testing"
)

// Valve is a TCP proxy that can hold back what flows through it, or cut it.
// What is held is kept, and flows on after Release.
type Valve struct {
	upstream string
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	change *sync.Cond // some field below has changed
	held   [2]bool    // by direction
	pairs  map[*pair]struct{}
	closed bool
}

type direction int

const (
	requests direction = iota // from the client to the server
	replies                   // from the server to the client
)

// pair is one client's connection and the one to the server that goes with it.
type pair struct {
	client, server net.Conn
	closed         bool // guarded by the valve's mu
}

// NewValve starts a proxy to the server at upstreamAddr. It ends, with all its
// connections, when the test does.
func NewValve(t testing.TB, upstreamAddr string) *Valve {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("start valve: %v", err)
	}
	v := &Valve{upstream: upstreamAddr, listener: listener, pairs: make(map[*pair]struct{})}
	v.change = sync.NewCond(&v.mu)
	v.running.Go(v.accept)
	t.Cleanup(v.close)
	return v
}

// Addr is where clients connect.
func (v *Valve) Addr() string { return v.listener.Addr().String() }

// HoldReplies lets nothing more through from the server to the client; the
// connections stay open.
func (v *Valve) HoldReplies() { v.hold(replies, true) }

// HoldRequests lets nothing more through from the client to the server; the
// connections stay open.
func (v *Valve) HoldRequests() { v.hold(requests, true) }

// Release lets everything through again, first what was held.
func (v *Valve) Release() {
	v.hold(requests, false)
	v.hold(replies, false)
}

// Cut closes all connections, and drops what is held in them. New ones are
// accepted.
func (v *Valve) Cut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for p := range v.pairs {
		v.cut(p)
	}
}

func (v *Valve) hold(d direction, on bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.held[d] = on
	v.change.Broadcast()
}

func (v *Valve) close() {
	v.listener.Close()
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.Cut()
	v.running.Wait()
}

func (v *Valve) accept() {
	for {
		client, err := v.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("tcp", v.upstream)
		if err != nil {
			client.Close() // as a proxy must, with the server away
			continue
		}
		v.join(&pair{client: client, server: server})
	}
}

func (v *Valve) join(p *pair) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pairs[p] = struct{}{}
	if v.closed {
		v.cut(p)
		return
	}
	v.running.Go(func() { v.pump(p, requests, p.server, p.client) })
	v.running.Go(func() { v.pump(p, replies, p.client, p.server) })
}

// pump copies one direction of a pair until either end closes.
func (v *Valve) pump(p *pair, d direction, to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		v.pass(p, d) // also the end of the stream waits
		if _, writeErr := to.Write(buffer[:n]); err == nil {
			err = writeErr
		}
		if err != nil {
			v.mu.Lock()
			v.cut(p)
			v.mu.Unlock()
			return
		}
	}
}

// pass waits until the direction is open, or the pair is closed.
func (v *Valve) pass(p *pair, d direction) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for v.held[d] && !p.closed {
		v.change.Wait()
	}
}

// cut closes a pair. The caller holds mu.
func (v *Valve) cut(p *pair) {
	if p.closed {
		return
	}
	p.closed = true
	p.client.Close()
	p.server.Close()
	delete(v.pairs, p)
	v.change.Broadcast()
}
