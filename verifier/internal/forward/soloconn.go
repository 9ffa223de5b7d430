package forward

import (
	"context"
	"sync"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// idleConnection is how long a solo channel keeps its connection without a message.
const idleConnection = time.Minute

// soloConnections makes the connections of solo channels: one at a time, which the channels
// share. A refused publish closes only its channel. A channel that waits for a confirm holds up
// other channels of its connection only if it has many messages in flight; a solo channel has
// one. So suspects share one connection. A target that did not confirm keeps the broker's side of
// its channel busy for long, so its connection is left to the channels that still use it.
type soloConnections struct {
	connect func(context.Context) (*bridge.Connection, error)
	// borrow returns the main channel's connection, if there is one. A suspect costs that connection a
	// channel at most. Nil: these channels may not borrow.
	borrow func() *bridge.Connection

	mu      sync.Mutex
	current *soloConnection // nil: none yet, or it was left
	again   time.Time       // earliest time of the next attempt to connect
	wait    time.Duration
}

// A soloConnection is a connection and the number of channels that use it.
type soloConnection struct {
	conn     *bridge.Connection
	users    int
	borrowed bool
}

// get returns the connection for one more channel. If no separate connection can be opened now, for
// example at a limit of the user's connections, get returns the main channel's connection.
func (c *soloConnections) get(ctx context.Context) (*soloConnection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && c.current.conn.Err() != nil {
		c.current = nil
	}
	if c.current != nil {
		c.current.users++
		return c.current, nil
	}
	var err error
	if c.borrow == nil || !time.Now().Before(c.again) {
		var conn *bridge.Connection
		if conn, err = c.connect(ctx); err == nil {
			c.wait = 0
			c.current = &soloConnection{conn: conn, users: 1}
			return c.current, nil
		}
		c.wait = min(max(2*c.wait, firstReconnect), mostReconnect)
		c.again = time.Now().Add(c.wait)
	}
	if c.borrow != nil {
		if conn := c.borrow(); conn != nil {
			return &soloConnection{conn: conn, users: 1, borrowed: true}, nil
		}
	}
	if err == nil {
		err = bridge.ErrUnavailable
	}
	return nil, err
}

// stale reports whether a channel should change to another connection: its connection was left, or
// is borrowed and an attempt to connect is due.
func (c *soloConnections) stale(connection *soloConnection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if connection.borrowed {
		return connection.conn.Err() != nil || !time.Now().Before(c.again)
	}
	return connection != c.current
}

// release removes one channel from the users of a connection. The last one closes the connection.
// With leave no further channel gets it.
func (c *soloConnections) release(connection *soloConnection, leave bool) {
	c.mu.Lock()
	connection.users--
	last := connection.users == 0 && !connection.borrowed
	if (leave || last) && c.current == connection {
		c.current = nil
	}
	c.mu.Unlock()
	if last {
		connection.conn.Close()
	}
}

// A soloChannel publishes one message at a time. It is opened when it has a message.
type soloChannel struct {
	from       *soloConnections
	connection *soloConnection   // nil: none
	publisher  *bridge.Publisher // nil: none
}

// open makes sure that there is a channel to publish over.
func (c *soloChannel) open(ctx context.Context) (err error) {
	if c.connection != nil && c.from.stale(c.connection) {
		c.release()
	}
	if c.connection == nil {
		if c.connection, err = c.from.get(ctx); err != nil {
			return err
		}
	}
	if c.publisher == nil || c.publisher.Err() != nil {
		c.publisher, err = openPublisher(ctx, c.connection.conn, 1)
	}
	return err
}

// release ends the channel, and closes the connection if no other channel uses it.
func (c *soloChannel) release() { c.close(false) }

// leave is release for a connection that has failed or a target that did not confirm.
func (c *soloChannel) leave() { c.close(true) }

func (c *soloChannel) close(leave bool) {
	if c.connection != nil {
		if c.publisher != nil && !leave {
			c.publisher.Close()
		}
		c.from.release(c.connection, leave)
	}
	c.connection, c.publisher = nil, nil
}

// idle returns a timer that fires when the connection has had no message for idleConnection.
func (c *soloChannel) idle() <-chan time.Time {
	if c.connection == nil {
		return nil
	}
	return time.After(idleConnection)
}

// openPublisher opens a channel. The AMQP library's channels take no context, so openPublisher
// closes the connection if ctx ends meanwhile.
func openPublisher(ctx context.Context, conn *bridge.Connection, inFlight int) (*bridge.Publisher, error) {
	defer context.AfterFunc(ctx, conn.Close)()
	return conn.Publisher(inFlight)
}
