package bridge

import (
	"log/slog"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// readAheadPatience is how long a connection stays beyond its limit. Then it counts anew and reads
// on, since deliveries of a closed channel are never received.
const readAheadPatience = time.Second

// A readAhead is a connection that bounds the bytes of deliveries read but not received. The AMQP
// library reads everything that comes, and keeps it until it is received (measured on one
// processor: 29 of 40 MB).
//
// It pauses where a message begins. RabbitMQ sends the frames of one message after the other, so
// every message before can be received.
//
// A message that the library cannot read is replaced by a record (frames).
type readAhead struct {
	net.Conn
	log    *slog.Logger
	frames frames
	buffer []byte        // the last bytes from the broker, as frames returned them
	ready  []byte        // the part of buffer that Read has not returned
	begun  bool          // a message begins in those bytes
	freed  chan struct{} // something was received, or the limit was lifted

	mu     sync.Mutex
	limit  int  // 0: none
	bytes  int  // bytes of bodies that were read and not received
	ending bool // the connection is closing: unreceived deliveries are no fault
	closed bool
}

func newReadAhead(conn net.Conn, log *slog.Logger) *readAhead {
	return &readAhead{Conn: conn, log: log, freed: make(chan struct{}, 1)}
}

// bound sets the limit, and restarts the count.
func (r *readAhead) bound(limit int) {
	r.mu.Lock()
	r.limit, r.bytes = limit, 0
	r.mu.Unlock()
	signal(r.freed)
}

// add counts body bytes read, or received if negative. Bytes read before the last call of bound
// may still be received.
func (r *readAhead) add(bytes int) {
	r.mu.Lock()
	r.bytes = max(0, r.bytes+bytes)
	r.mu.Unlock()
}

func (r *readAhead) received(bytes int) {
	r.add(-bytes)
	signal(r.freed)
}

func (r *readAhead) exceeded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limit > 0 && r.bytes > r.limit && !r.closed
}

// Read waits before it reads. By now the library has handled everything read before, so each whole
// message can be received.
func (r *readAhead) Read(p []byte) (n int, err error) {
	for len(r.ready) == 0 && err == nil {
		if r.begun {
			r.wait()
		}
		n, err = r.Conn.Read(p)
		var bodies int
		r.buffer, bodies, r.begun = r.frames.follow(r.buffer[:0], p[:n])
		r.ready = r.buffer
		r.add(bodies)
	}
	n = copy(p, r.ready)
	if r.ready = r.ready[n:]; len(r.ready) > 0 {
		err = nil // the next Read returns it again
	}
	return n, err
}

func (r *readAhead) wait() {
	var late <-chan time.Time
	for r.exceeded() {
		if late == nil {
			late = time.After(readAheadPatience)
		}
		select {
		case <-r.freed:
		case <-late:
			r.mu.Lock()
			if r.bytes = 0; !r.ending {
				r.log.Warn("deliveries are not received; reading on", "waited", readAheadPatience)
			}
			r.mu.Unlock()
		}
	}
}

// end stops the warning about unreceived deliveries, and lifts the limit after the time within. The
// returned function must be called.
func (r *readAhead) end(within time.Duration) (stop func() bool) {
	r.mu.Lock()
	r.ending = true
	r.mu.Unlock()
	return time.AfterFunc(within, r.open).Stop
}

// open ends this pause and prevents all later ones.
func (r *readAhead) open() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	signal(r.freed)
}

func (r *readAhead) Close() error {
	r.open()
	return r.Conn.Close()
}

// BoundReadAhead bounds how many bytes of deliveries, by their bodies, the connection reads
// before they are received. It reads one message more than that, however large. By default there
// is no bound: the library reads everything the broker sends, up to the prefetch count.
//
// From then on call Received for every delivery of every consumer on this connection. A connection
// that stays beyond the bound for a second counts anew, reads on, and logs a warning.
//
// Call it again after you have closed a channel. Deliveries read before that call, including those
// lost with the channel, are no longer counted.
//
// The library reads 4 KiB at once, so a bound below that costs a second now and then. The
// broker's answer to Close comes behind deliveries: receive until Close returns, or the connection
// may end without that answer.
func (c *Connection) BoundReadAhead(bytes int) { c.ahead.bound(bytes) }

// Received counts d as received. See BoundReadAhead.
func (c *Connection) Received(d amqp.Delivery) { c.ahead.received(len(d.Body)) }
