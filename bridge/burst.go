package bridge

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// burstLimit bounds what waits to be written; beyond it Write blocks.
	burstLimit = 256 << 10
	// lastWrite bounds the flush of what is left when the connection is closed.
	lastWrite = time.Second
)

// burstConn writes in bursts: what is written while the system is still busy
// with the last burst gathers and goes out with one call. The AMQP library
// flushes after every message; the broker's cost is per burst, not per message
// (FACTS), and so is the system's. An idle connection is not delayed.
//
// An error of the connection is reported by a later Write. That is no loss: only
// a broker's confirm says that a message has arrived.
type burstConn struct {
	net.Conn
	wake chan struct{} // something to write
	room chan struct{} // the buffer was taken
	done chan struct{} // the writer has ended

	mu      sync.Mutex
	buf     []byte
	closing bool
	err     error
}

func newBurstConn(conn net.Conn) *burstConn {
	c := &burstConn{
		Conn: conn,
		wake: make(chan struct{}, 1),
		room: make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	go c.writer()
	return c
}

func (c *burstConn) Write(p []byte) (int, error) {
	for {
		c.mu.Lock()
		switch {
		case c.err != nil:
			defer c.mu.Unlock()
			return 0, c.err
		case c.closing:
			c.mu.Unlock()
			return 0, net.ErrClosed
		case len(c.buf) < burstLimit:
			c.buf = append(c.buf, p...)
			c.mu.Unlock()
			signal(c.wake)
			return len(p), nil
		}
		c.mu.Unlock()
		select {
		case <-c.room:
		case <-c.done:
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
		closing := c.closing
		c.mu.Unlock()
		signal(c.room)
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

func (c *burstConn) fail(err error) {
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	_ = c.Conn.Close()
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
