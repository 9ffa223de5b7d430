package bridge

import (
	"log/slog"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// readAheadPatience is how long a connection stays beyond its bound. Then it counts anew and
// reads on: a delivery that went down with its channel is never received.
const readAheadPatience = time.Second

// A readAhead is a connection that reads only so many bytes of deliveries before somebody
// receives them. The AMQP library reads all that comes, and keeps it until it is received:
// that was 29 of 40 MB, on one processor (measured).
//
// It pauses where a message begins. RabbitMQ sends the frames of one message after the other,
// so all before it can be received.
//
// A message that the library cannot read becomes a record on the way (frames).
type readAhead struct {
	net.Conn
	log    *slog.Logger
	frames frames
	buffer []byte        // what frames has made of the last bytes from the broker
	ready  []byte        // the part of buffer that Read has not returned
	begun  bool          // a message, in those bytes
	freed  chan struct{} // something was received, or nothing limits reading any more

	mu     sync.Mutex
	limit  int  // 0: none
	bytes  int  // of bodies that were read and not received
	ending bool // nobody need receive any more
	closed bool
}

func newReadAhead(conn net.Conn, log *slog.Logger) *readAhead {
	return &readAhead{Conn: conn, log: log, freed: make(chan struct{}, 1)}
}

// bound sets the limit, and counts anew.
func (r *readAhead) bound(limit int) {
	r.mu.Lock()
	r.limit, r.bytes = limit, 0
	r.mu.Unlock()
	signal(r.freed)
}

// add counts what was read, or received if negative. What was read before the last call of
// bound may still be received.
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

// Read waits before it reads: by now the library has dealt with all that was read before, so
// each message that is whole can be received.
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
		err = nil // the next Read has it again
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

// end expects nobody to receive any more, and pauses no longer when the time is up. The
// returned function must be called.
func (r *readAhead) end(within time.Duration) (stop func() bool) {
	r.mu.Lock()
	r.ending = true
	r.mu.Unlock()
	return time.AfterFunc(within, r.open).Stop
}

// open ends a pause, and all to come.
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
// before they are received. It reads one message more than that, however large. By default
// there is no bound: the library reads what the broker sends, up to the prefetch count.
//
// From then on tell Received of every delivery of every consumer on this connection. A
// connection that stays beyond the bound for a second counts anew, reads on, and says so in the
// log.
//
// Call it again after you have closed a channel: what the channel took with it is not counted
// any more. Nor is what was read before and not received.
//
// The library reads 4 KiB at once, so a bound below that costs a second now and then. The
// broker's answer to Close comes behind deliveries: receive until Close returns, or it may end
// without that answer.
func (c *Connection) BoundReadAhead(bytes int) { c.ahead.bound(bytes) }

// Received says that a delivery was received. See BoundReadAhead.
func (c *Connection) Received(d amqp.Delivery) { c.ahead.received(len(d.Body)) }
