package main

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// A network models a network's latency: it delivers all data late, in both directions. The
// benchmark runs on one machine, where a round trip takes almost no time; each statement of a
// transaction is a round trip.
type network struct {
	late     time.Duration // each way
	listener net.Listener
	to       string
	running  sync.WaitGroup

	mu    sync.Mutex
	ended bool
	conns []net.Conn
}

// newNetwork starts a network in front of a server.
func newNetwork(server string, late time.Duration) (*network, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &network{late: late, listener: listener, to: server}
	n.running.Go(n.accept)
	return n, nil
}

// address returns the address at which the network accepts the server's clients.
func (n *network) address() string { return n.listener.Addr().String() }

func (n *network) accept() {
	for {
		client, err := n.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp4", n.to)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !n.keep(client, server) {
			return
		}
		n.running.Go(func() { n.carry(client, server) })
		n.running.Go(func() { n.carry(server, client) })
	}
}

// keep registers connections for close. After close it closes them at once and returns false.
func (n *network) keep(conns ...net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(n.conns, conns...)
	if n.ended {
		n.end()
	}
	return !n.ended
}

// end closes all connections. The caller holds mu.
func (n *network) end() {
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.conns = nil
}

func (n *network) close() error {
	err := n.listener.Close()
	n.mu.Lock()
	n.ended = true
	n.end()
	n.mu.Unlock()
	n.running.Wait()
	return err
}

// carry copies data from one connection to the other, each piece when it is due. When one
// connection ends, carry closes the other.
func (n *network) carry(from, to net.Conn) {
	type piece struct {
		due  time.Time
		data []byte
	}
	way := make(chan piece, 256)
	n.running.Go(func() {
		defer close(way)
		for {
			data := make([]byte, 16<<10)
			read, err := from.Read(data)
			if read > 0 {
				way <- piece{time.Now().Add(n.late), data[:read]}
			}
			if err != nil {
				return
			}
		}
	})
	var err error
	for p := range way {
		if err == nil {
			sleepUntil(p.due)
			_, err = to.Write(p.data)
		}
		if err != nil {
			_ = from.Close()
		}
	}
	_ = to.Close()
}

// sleepUntil sleeps through the system call: Go's sleep rounds up to a millisecond if nothing else
// runs.
func sleepUntil(due time.Time) {
	for left := time.Until(due); left > 0; left = time.Until(due) {
		wait := syscall.NsecToTimespec(left.Nanoseconds())
		if err := syscall.Nanosleep(&wait, nil); err != nil && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}
