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
	// burstLimit is how much may wait to be written before waitRoom waits.
	burstLimit = 256 << 10
	// readLimit is how much is read with one call, if it is there.
	readLimit = 64 << 10
	// lastWrite bounds the flush of what is left when the connection is closed.
	lastWrite = time.Second
	// lastRead bounds the reading of what has come when nothing can be written any more.
	lastRead = time.Second
)

// burstConn reads and writes in bursts: what is written while the system is still busy
// with the last burst gathers and goes out with one call. The AMQP library
// flushes after every message; the broker's cost is per burst, not per message
// (measured on RabbitMQ 3.10), and so is the system's. An idle connection is not delayed.
//
// Write never blocks: the library holds its locks meanwhile, so a broker that
// reads nothing (a memory alarm, a dead network) would stop its reader too, and
// no deadline could be kept. Whoever has much to write calls waitRoom first.
//
// An error of the connection is reported by a later Write. That is no loss: only
// a broker's confirm says that a message has arrived.
type burstConn struct {
	net.Conn
	reader *bufio.Reader
	wake   chan struct{} // something to write
	done   chan struct{} // the writer has ended

	mu      sync.Mutex
	buf     []byte
	taken   chan struct{} // closed when the writer takes buf
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

// waitRoom waits until less than burstLimit waits to be written, or the
// connection is over, which Write will tell. It returns false if ctx ends first.
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
			burst = nil // one huge message must not hold its memory for ever
		}
		burst, c.buf = c.buf, burst[:0]
		if len(burst) >= burstLimit { // somebody may wait
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

// fail ends the connection by its reader, who first reads what has come: the broker may have
// said why it takes nothing more.
func (c *burstConn) fail(err error) {
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	_ = c.Conn.SetReadDeadline(time.Now().Add(lastRead))
}

// Close writes what is left, for at most lastWrite, and closes the connection.
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
