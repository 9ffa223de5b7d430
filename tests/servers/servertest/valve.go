package servertest

import (
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"
)

// Valve is a TCP proxy that can hold back data, slow it down, lose it, or cut its connections. Held
// data is kept, and flows on after Release.
type Valve struct {
	listener net.Listener
	running  sync.WaitGroup
	copy     func(p *pair, d direction, to, from net.Conn) // pump, or a Gate's

	mu        sync.Mutex
	change    *sync.Cond // a field below has changed
	upstreams []string
	held      [2]bool // by direction
	delay     time.Duration
	vanish    bool
	pairs     map[*pair]struct{}
	closed    bool
	turn      int    // the upstream that the next connection tries first
	avoid     string // the upstream that gets no connection
}

type direction int

const (
	requests direction = iota // from the client to the server
	replies                   // from the server to the client
)

// pair is a client's connection and the connection to the server for it.
type pair struct {
	client, server net.Conn
	upstream       string        // the server's address, as given to the valve
	n              int           // position in the order of acceptance
	done           chan struct{} // closed with the pair
	// Guarded by the valve's mu:
	closed bool
	lost   bool // all data is lost
	torn   bool // the next data is cut in its middle

	forgotten bool // the server's data is lost, and the client's data cuts the pair
}

// NewValve starts a proxy to the server at upstreamAddr. With several addresses it is a load
// balancer in front of a cluster: it connects to them in turn, and skips unreachable ones. It ends
// with all its connections when the test ends.
func NewValve(t testing.TB, upstreamAddr string, others ...string) *Valve {
	t.Helper()
	v := &Valve{upstreams: append([]string{upstreamAddr}, others...)}
	v.start(t)
	return v
}

// Through starts a valve in front of the server of a URL, and returns the URL of the valve.
func Through(t testing.TB, address string) (v *Valve, through string) {
	t.Helper()
	v = new(Valve)
	return v, v.through(t, address)
}

// through starts v in front of the server of a URL, and returns the URL of v.
func (v *Valve) through(t testing.TB, address string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatalf("parse URL: %v", err)
	}
	v.upstreams = []string{parsed.Host}
	v.start(t)
	parsed.Host = v.Addr()
	return parsed.String()
}

func (v *Valve) start(t testing.TB) {
	t.Helper()
	if v.copy == nil {
		v.copy = v.pump
	}
	v.pairs = make(map[*pair]struct{})
	v.change = sync.NewCond(&v.mu)
	var err error
	if v.listener, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		t.Fatalf("start valve: %v", err)
	}
	v.running.Go(v.accept)
	t.Cleanup(v.close)
}

// Addr returns the address for clients.
func (v *Valve) Addr() string { return v.listener.Addr().String() }

// HoldReplies holds all data from the server to the client; the connections stay open.
func (v *Valve) HoldReplies() { v.hold(replies, true) }

// HoldRequests holds all data from the client to the server; the connections stay open.
func (v *Valve) HoldRequests() { v.hold(requests, true) }

// Slow delays every piece of data of up to 32 KiB, in both directions, by d.
func (v *Valve) Slow(d time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.delay = d
}

// Vanish loses all data, including the end of a stream, and new connections get no answer. Release
// cuts these connections, as when the kernels give them up.
func (v *Valve) Vanish() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.vanish = true
	for p := range v.pairs {
		p.lost = true
	}
	v.change.Broadcast()
}

// Tear cuts each connection in the middle of its next data, so that a frame begins and does not
// end.
func (v *Valve) Tear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for p := range v.pairs {
		p.torn = true
	}
}

// Forget makes the connections half-open, like a firewall that has forgotten them: if the server
// ends one, the client learns of it only when it sends. New connections are not affected.
func (v *Valve) Forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for p := range v.pairs {
		p.forgotten = true
	}
}

// Release lets all data through again, beginning with held data. It cuts the connections that
// Vanish affected.
func (v *Valve) Release() {
	v.hold(requests, false)
	v.hold(replies, false)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.delay, v.vanish = 0, false
	for p := range v.pairs {
		if p.lost {
			v.cut(p)
		}
	}
}

// Avoid takes a server out of the balancer: its connections are cut, and new ones go to the others.
// Avoid("") puts all servers in again.
func (v *Valve) Avoid(upstreamAddr string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.avoid = upstreamAddr
	for p := range v.pairs {
		if v.avoids(p) {
			v.cut(p)
		}
	}
}

// Lead sends new connections to these servers in turn, in place of the previous ones. Connections
// to other servers are cut.
func (v *Valve) Lead(upstreamAddr string, others ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.upstreams = append([]string{upstreamAddr}, others...)
	for p := range v.pairs {
		if !slices.Contains(v.upstreams, p.upstream) {
			v.cut(p)
		}
	}
}

// avoids reports whether a pair leads to the server that is out. The caller holds mu.
func (v *Valve) avoids(p *pair) bool { return p.upstream == v.avoid }

// Cut closes all connections, and drops their held data. New ones are accepted.
func (v *Valve) Cut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for p := range v.pairs {
		v.cut(p)
	}
}

// CutLast closes the open connection that was accepted last.
func (v *Valve) CutLast() {
	v.mu.Lock()
	defer v.mu.Unlock()
	var last *pair
	for p := range v.pairs {
		if last == nil || p.n > last.n {
			last = p
		}
	}
	if last != nil {
		v.cut(last)
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
	for n := 0; ; n++ {
		client, err := v.listener.Accept()
		if err != nil {
			return // closed
		}
		server, upstream, err := v.dial()
		if err != nil {
			client.Close() // as a proxy does if the server is away
			continue
		}
		v.join(&pair{client: client, server: server, upstream: upstream, n: n, done: make(chan struct{})})
	}
}

// dial connects to the first upstream that answers.
func (v *Valve) dial() (server net.Conn, upstream string, err error) {
	v.mu.Lock()
	first, avoid, upstreams := v.turn, v.avoid, v.upstreams
	v.turn++
	v.mu.Unlock()
	err = net.ErrClosed // if all servers are out
	for i := range upstreams {
		upstream = upstreams[(first+i)%len(upstreams)]
		if upstream == avoid {
			continue
		}
		if server, err = net.Dial("tcp", upstream); err == nil {
			return server, upstream, nil
		}
	}
	return nil, "", err
}

func (v *Valve) join(p *pair) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pairs[p] = struct{}{}
	p.lost = v.vanish
	if v.closed || v.avoids(p) || !slices.Contains(v.upstreams, p.upstream) {
		v.cut(p)
		return
	}
	run := func(d direction, to, from net.Conn) {
		v.copy(p, d, to, from)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.cut(p)
	}
	v.running.Go(func() { run(requests, p.server, p.client) })
	v.running.Go(func() { run(replies, p.client, p.server) })
}

// pump copies one direction of a pair until either end closes.
func (v *Valve) pump(p *pair, d direction, to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		lost, torn, forgotten := v.pass(p, d) // the end of the stream waits too
		switch {
		case forgotten && d == requests && err == nil:
			err = net.ErrClosed
		case lost && err != nil:
			<-p.done // the other end learns nothing
		case lost:
			continue
		case torn && n > 0:
			_, _ = to.Write(buffer[:n/2])
			err = net.ErrClosed
		default:
			if _, writeErr := to.Write(buffer[:n]); err == nil {
				err = writeErr
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits until the direction is open, or the pair is closed or lost.
func (v *Valve) pass(p *pair, d direction) (lost, torn, forgotten bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.delay > 0 {
		timer := time.NewTimer(v.delay)
		v.mu.Unlock()
		select {
		case <-timer.C:
		case <-p.done:
		}
		timer.Stop()
		v.mu.Lock()
	}
	for v.held[d] && !p.closed && !p.lost {
		v.change.Wait()
	}
	return p.lost || p.forgotten && d == replies, p.torn, p.forgotten
}

// cut closes a pair. The caller holds mu.
func (v *Valve) cut(p *pair) {
	if p.closed {
		return
	}
	p.closed = true
	close(p.done)
	p.client.Close()
	p.server.Close()
	delete(v.pairs, p)
	v.change.Broadcast()
}
