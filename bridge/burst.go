package bridge

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// burstLimit is how many unwritten bytes make waitRoom wait.
	burstLimit = 256 << 10
	// readLimit bounds the bytes read with one call.
	readLimit = 64 << 10
	// lastWrite bounds the flush of unwritten bytes when the connection is closed.
	lastWrite = time.Second
	// lastRead bounds the reading of bytes that have arrived, after a write has failed.
	lastRead = time.Second
)

// burstConn reads and writes in bursts: bytes written while the system is busy with the last burst
// gather and go out with one call. The AMQP library flushes after every message, but cost is per
// burst, not per message, for the broker (measured on RabbitMQ 3.10) and for the system. An idle
// connection is not delayed.
//
// Write never blocks. The library holds its locks during Write, so with a broker that reads nothing
// (a memory alarm, a dead network) the library's reader would stop too, and no deadline could be
// kept. Callers with much to write call waitRoom first.
//
// An error of the connection is reported by a later Write. Nothing is lost by that: only a
// broker's confirm proves that a message has arrived.
type burstConn struct {
	net.Conn
	reader *bufio.Reader
	wake   chan struct{} // something to write
	done   chan struct{} // the writer has ended

	mu      sync.Mutex
	buf     []byte
	taken   chan struct{} // closed when the writer empties buf
	closing bool
	err     error
}

func newBurstConn(conn net.Conn) *burstConn {
	c := &burstConn{
		Conn:   conn,
		reader: bufio.NewReaderSize(conn, readLimit),
		wake:   make(chan struct{}, 1),
		done:   make(chan struct{}),
		taken:  make(chan struct{}),
	}
	go c.writer()
	return c
}

func (c *burstConn) Read(p []byte) (int, error) { return c.reader.Read(p) }

func (c *burstConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return 0, c.err
	case c.closing:
		return 0, net.ErrClosed
	}
	c.buf = append(c.buf, p...)
	signal(c.wake)
	return len(p), nil
}

// waitRoom waits until fewer than burstLimit bytes are unwritten, or the connection is over (then
// Write returns the error). It returns false if ctx ends first.
func (c *burstConn) waitRoom(ctx context.Context) bool {
	for {
		c.mu.Lock()
		room, taken := len(c.buf) < burstLimit, c.taken
		c.mu.Unlock()
		if room {
			return true
		}
		select {
		case <-taken:
		case <-c.done:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

func (c *burstConn) writer() {
	defer close(c.done)
	var burst []byte
	for range c.wake {
		c.mu.Lock()
		if cap(burst) > 4*burstLimit {
			burst = nil // one huge message must not keep its memory for ever
		}
		burst, c.buf = c.buf, burst[:0]
		if len(burst) >= burstLimit { // a caller of waitRoom may wait
			close(c.taken)
			c.taken = make(chan struct{})
		}
		closing := c.closing
		c.mu.Unlock()
		if len(burst) > 0 {
			if _, err := c.Conn.Write(burst); err != nil {
				c.fail(err)
				return
			}
		}
		if closing {
			return
		}
	}
}

// fail ends the connection through its reader. The reader first reads the bytes that have arrived:
// the broker may have sent its reason for taking no more.
func (c *burstConn) fail(err error) {
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	_ = c.Conn.SetReadDeadline(time.Now().Add(lastRead))
}

// Close writes the remaining bytes, for at most lastWrite, and closes the connection.
func (c *burstConn) Close() error {
	c.mu.Lock()
	again := c.closing
	c.closing = true
	c.mu.Unlock()
	if again {
		return net.ErrClosed
	}
	err := c.Conn.SetWriteDeadline(time.Now().Add(lastWrite))
	signal(c.wake)
	<-c.done
	if closeErr := c.Conn.Close(); err == nil && !errors.Is(closeErr, os.ErrDeadlineExceeded) {
		err = closeErr
	}
	return err
}

// signal leaves a token in a channel of capacity one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
