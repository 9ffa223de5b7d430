package bridge

import (
	"encoding/binary"
	"net"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// readAheadPatience is how long a connection waits for those who receive. They take what is
// there at once; a delivery that went down with its channel is never taken.
const readAheadPatience = time.Second

// A readAhead is a connection that reads only so many bytes of deliveries before somebody
// receives them. The AMQP library reads all that comes, and keeps it until it is received:
// where a processor is busy that was 160 MB of a prefetch of large messages (measured with
// GOMAXPROCS=1).
//
// It pauses where the next message begins. A broker sends a message's frames one after the
// other, so whatever was counted until then can be received.
type readAhead struct {
	net.Conn
	frames frames
	freed  chan struct{} // something was received, or reading goes on without a limit

	mu    sync.Mutex
	limit int // 0: none
	bytes int // of bodies that were read and not received
}

func newReadAhead(conn net.Conn) *readAhead {
	return &readAhead{Conn: conn, freed: make(chan struct{}, 1)}
}

// bound sets the limit, 0 for none, and counts anew.
func (r *readAhead) bound(limit int) {
	r.mu.Lock()
	r.limit, r.bytes = limit, 0
	r.mu.Unlock()
	signal(r.freed)
}

// add counts what was read, or received if negative, and tells whether it is too much. What
// was read before the last call of bound may still be received.
func (r *readAhead) add(bytes int) (exceeded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes = max(0, r.bytes+bytes)
	return r.limit > 0 && r.bytes > r.limit
}

func (r *readAhead) received(bytes int) {
	r.add(-bytes)
	signal(r.freed)
}

func (r *readAhead) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	bodies, begins := r.frames.scan(p[:n])
	if exceeded := r.add(bodies); exceeded && begins {
		r.wait()
	}
	return n, err
}

func (r *readAhead) wait() {
	late := time.After(readAheadPatience)
	for r.add(0) {
		select {
		case <-r.freed:
		case <-late:
			r.mu.Lock()
			r.bytes = 0
			r.mu.Unlock()
		}
	}
}

// Close lets reading go on to the broker's last word.
func (r *readAhead) Close() error {
	r.bound(0)
	return r.Conn.Close()
}

// frames follows what a broker sends. A frame has a type, a channel, a size, as many bytes,
// and an end (AMQP 0-9-1, section 2.3.5). A message is a method, a header and a body.
type frames struct {
	head [7]byte
	have int   // bytes of head
	left int64 // bytes of the frame behind head
}

// scan returns how many bytes of bodies are in p, and whether a method begins there.
func (f *frames) scan(p []byte) (bodies int, begins bool) {
	const method, body = 1, 3
	for len(p) > 0 {
		if f.left == 0 {
			n := copy(f.head[f.have:], p)
			f.have, p = f.have+n, p[n:]
			if f.have < len(f.head) {
				break
			}
			const end = 1
			f.have, f.left = 0, int64(binary.BigEndian.Uint32(f.head[3:]))+end
			begins = begins || f.head[0] == method
			continue
		}
		n := int(min(f.left, int64(len(p))))
		f.left, p = f.left-int64(n), p[n:]
		if f.head[0] != body {
			continue
		}
		bodies += n
		if f.left == 0 {
			bodies-- // the end
		}
	}
	return bodies, begins
}

// BoundReadAhead bounds how many bytes of deliveries, by their bodies, the connection reads
// before they are received. It may read one message more, however large. By default there is
// no bound: the library reads what the broker sends, up to the prefetch count. From then on
// Received must be told of every delivery of every consumer on this connection, or the
// connection pauses for a second each time that the bound is reached.
//
// Call it again after you have closed a channel: what the channel took with it is not counted
// any more.
func (c *Connection) BoundReadAhead(bytes int) { c.ahead.bound(bytes) }

// Received says that a delivery was received. See BoundReadAhead.
func (c *Connection) Received(d amqp.Delivery) { c.ahead.received(len(d.Body)) }
