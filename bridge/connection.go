package bridge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// closePatience bounds the closing handshake with a broker that does not answer.
const closePatience = 2 * time.Second

// answerPatience bounds the broker's answer to one request. A queue without a majority, or a node
// that has frozen behind a proxy, may never answer, while heartbeats come.
const answerPatience = 30 * time.Second

// Product is the client's product that RabbitMQ's lists show for a connection of the bridge.
const Product = "twoqueue"

// A Connection is one connection to the broker. It never recovers. When it is over, Done is
// closed, and everything that belongs to it is over too (rule 7 in the package's comment).
//
// amqp091-go ends a connection when a message arrives whose headers it cannot read: tables nested
// more than 32 deep, more than 8192 elements in one, more than a frame. RabbitMQ delivers such
// messages, again and again. In place of such a message a Connection delivers a record: without
// message ID, with the header x-bridge-unreadable, which gives the reason, and with the message's
// headers and body in its body (wire.OpenDead reads it). A receiver must refuse such a message; the
// strategies of package idempotency do.
type Connection struct {
	host  string // and port
	conn  *amqp.Connection
	burst *burstConn
	ahead *readAhead
	done  chan struct{}
	lost  func() // called if the connection ends by an error, or gives no answer

	silent atomic.Bool // a request got no answer in time

	mu      sync.Mutex
	err     error
	blocked string        // the broker's reason, "" if not blocked
	open    chan struct{} // closed while the broker takes messages
}

// A dialer makes connections; net.Dialer.DialContext is one.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// connect opens a connection to one address. lost is called if the connection ends by an error, or
// gives no answer.
func connect(ctx context.Context, dial dialer, address, name string, tlsConfig *tls.Config, log *slog.Logger, lost func()) (*Connection, error) {
	uri, err := amqp.ParseURI(address)
	if err != nil {
		return nil, fmt.Errorf("connect to the broker: %w", ErrURL)
	}
	if uri.Scheme == "amqps" { // our Dial does TLS, and the library speaks plain AMQP over it
		address = "amqp" + address[len("amqps"):]
	}
	host := net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
	// The library takes no context. So the end of ctx closes the socket during the handshakes.
	abandon := func() bool { return true }
	var burst *burstConn
	var secure *tlsConn
	var ahead *readAhead
	config := amqp.Config{
		Properties: amqp.Table{"product": Product, "connection_name": name},
		Locale:     "en_US",
		Dial: func(network, _ string) (net.Conn, error) {
			conn, err := dial(ctx, network, host)
			if err != nil {
				return nil, err
			}
			burst = newBurstConn(conn)
			abandon = context.AfterFunc(ctx, func() { _ = burst.Close() })
			plain := net.Conn(burst)
			if uri.Scheme == "amqps" {
				if secure, err = handshake(ctx, burst, uri, tlsConfig); err != nil {
					return nil, err
				}
				plain = secure
			}
			ahead = newReadAhead(plain, log)
			return ahead, nil
		},
	}
	conn, err := amqp.DialConfig(address, config)
	inTime := abandon()
	if err != nil {
		if burst != nil {
			_ = burst.Close() // after some errors the library does not close it
		}
		return nil, connectError(ctx, host, secure.orAlert(err))
	}
	if !inTime {
		_ = conn.Close()
		return nil, connectError(ctx, host, context.Cause(ctx))
	}
	if secure != nil {
		secure.opened.Store(true)
	}
	ahead.frames.max.Store(int64(conn.Config.FrameSize)) // must precede the first channel
	if heartbeat := conn.Config.Heartbeat; heartbeat > 0 {
		// The library clears the deadline after the handshake, and sets it again at the next frame. If the
		// broker freezes in between, no frame comes.
		_ = burst.SetReadDeadline(time.Now().Add(heartbeat * 3 / 2))
	}
	c := &Connection{host: host, conn: conn, burst: burst, ahead: ahead, done: make(chan struct{}), lost: lost, open: make(chan struct{})}
	close(c.open)
	blocks := conn.NotifyBlocked(make(chan amqp.Blocking, 4))
	closes := conn.NotifyClose(make(chan *amqp.Error, 1))
	go c.watch(blocks, closes)
	return c, nil
}

// connectError adds the cause to the broker's terse answers.
func connectError(ctx context.Context, host string, err error) error {
	var amqpErr *amqp.Error
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("connect to the broker at %s: %w: %w", host, ErrUnavailable, context.Cause(ctx))
	case errors.Is(err, amqp.ErrSASL):
		return fmt.Errorf("connect to the broker at %s: it does not offer the mechanism of the login: PLAIN, or the URL's auth_mechanism (auth_mechanisms in rabbitmq.conf): %w", host, ErrCredentials)
	case errors.Is(err, amqp.ErrCredentials):
		return fmt.Errorf("connect to the broker at %s: user or password refused: %w", host, ErrCredentials)
	case errors.As(err, &amqpErr) && amqpErr.Code == amqp.NotAllowed && strings.Contains(amqpErr.Reason, "connection limit"):
		return fmt.Errorf("connect to the broker at %s: %w: %w", host, ErrConnectionLimit, ErrUnavailable)
	case errors.Is(err, amqp.ErrVhost): // RabbitMQ gives a reason when it refuses a virtual host
		return fmt.Errorf("connect to the broker at %s: it closed the connection and gave no reason: %w", host, ErrUnavailable)
	case errors.As(err, &amqpErr) && amqpErr.Code == amqp.NotAllowed:
		return fmt.Errorf("connect to the broker at %s: virtual host missing, or the login has no permission on it (rabbitmqctl set_permissions): %w", host, ErrCredentials)
	}
	return fmt.Errorf("connect to the broker at %s: %w: %w", host, ErrUnavailable, err)
}

func (c *Connection) watch(blocks <-chan amqp.Blocking, closes <-chan *amqp.Error) {
	var reason *amqp.Error
	for blocks != nil || closes != nil {
		select {
		case b, ok := <-blocks:
			if !ok {
				blocks = nil
				continue
			}
			c.setBlocked(b)
		case err, ok := <-closes:
			if !ok {
				closes = nil
				continue
			}
			reason = err
		}
	}
	c.mu.Lock()
	c.err = ErrUnavailable
	switch {
	case c.unanswered(reason):
		c.err = &noAnswer{c.host}
	case reason != nil:
		c.err = fmt.Errorf("%w: connection to %s: %w", ErrUnavailable, c.host, reason)
	}
	c.mu.Unlock()
	if reason != nil {
		c.lost()
	}
	close(c.done)
}

func (c *Connection) setBlocked(b amqp.Blocking) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case b.Active && c.blocked == "":
		c.blocked = b.Reason
		if c.blocked == "" {
			c.blocked = "no reason given"
		}
		c.open = make(chan struct{})
	case !b.Active && c.blocked != "":
		c.blocked = ""
		close(c.open)
	}
}

// Done is closed when the connection is over; Err then gives the reason.
func (c *Connection) Done() <-chan struct{} { return c.done }

// Err returns nil while the connection is alive, and an error that wraps
// ErrUnavailable afterwards.
func (c *Connection) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Blocked returns the broker's reason for accepting no messages, or "".
func (c *Connection) Blocked() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blocked
}

// waitOpen waits until the broker accepts messages.
func (c *Connection) waitOpen(ctx context.Context) error {
	c.mu.Lock()
	open, reason := c.open, c.blocked
	c.mu.Unlock()
	select {
	case <-open:
		return nil
	default:
	}
	select {
	case <-open:
		return nil
	case <-c.done:
		return c.Err()
	case <-ctx.Done():
		return fmt.Errorf("%w: %s", ErrBlocked, reason)
	}
}

// Server returns the broker's product name and version; "" if the broker sends none.
func (c *Connection) Server() (product, version string) {
	product, _ = c.conn.Properties["product"].(string)
	version, _ = c.conn.Properties["version"].(string)
	return product, version
}

// Channel opens a channel, to consume or declare. Make the requests on it through Request.
func (c *Connection) Channel() (ch *amqp.Channel, err error) {
	err = c.Request(func() (err error) {
		ch, err = c.conn.Channel()
		return err
	})
	if errors.Is(err, amqp.ErrChannelMax) {
		err = fmt.Errorf("the connection may have %d channels: raise channel_max in rabbitmq.conf, or in the URL: %w", c.conn.Config.ChannelMax, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open channel: %w: %w", ErrUnavailable, err)
	}
	return ch, nil
}

// Request calls do, which makes one or a few requests on channels of the connection, such as a
// declaration. The AMQP library waits for each answer without a bound. If do has not returned after
// 30 s, Request ends the connection, which ends do, and returns an error that wraps ErrUnavailable.
// The broker's next connection then begins at another address. 30 s at whose beginning or end the
// broker blocks the connection (Blocked) do not count.
func (c *Connection) Request(do func() error) error {
	answered := make(chan struct{})
	defer close(answered)
	go c.endUnless(answered)
	err := do()
	var cause *amqp.Error
	errors.As(err, &cause)
	if err != nil && c.unanswered(cause) {
		return &noAnswer{c.host}
	}
	return err
}

// OnChannel is Request with a channel of its own, since a refusal by the broker closes the channel.
func (c *Connection) OnChannel(do func(*amqp.Channel) error) error {
	return c.Request(func() error {
		ch, err := c.Channel()
		if err != nil {
			return err
		}
		defer func() { _ = ch.Close() }()
		return do(ch)
	})
}

// unanswered reports whether the connection was ended because a request got no answer. The broker's
// own words, which may come just after answerPatience, say more: then it returns false.
func (c *Connection) unanswered(cause *amqp.Error) bool {
	return c.silent.Load() && (cause == nil || !cause.Server)
}

// endUnless ends the connection unless answered is closed within answerPatience. An answerPatience at
// whose beginning or end the connection is blocked does not count.
func (c *Connection) endUnless(answered <-chan struct{}) {
	late := time.NewTicker(answerPatience)
	defer late.Stop()
	blocked := func() bool { return c.Blocked() != "" }
	for atBegin, atEnd := true, blocked(); atBegin || atEnd; atBegin, atEnd = atEnd, blocked() {
		select {
		case <-late.C:
		case <-answered:
			return
		case <-c.done:
			return
		}
	}
	c.silent.Store(true)
	c.lost()
	c.Close()
}

// A noAnswer is ErrUnavailable for a connection that did not answer a request in time.
type noAnswer struct{ host string }

func (e *noAnswer) Error() string {
	return fmt.Sprintf("no answer from the broker at %s within %v", e.host, answerPatience)
}

func (*noAnswer) Is(target error) bool { return target == ErrUnavailable }

// Close ends the connection and all its channels. Unconfirmed messages may or may not be at the
// broker. Unacked messages are redelivered.
func (c *Connection) Close() {
	defer c.ahead.end(closePatience)()
	// Each frame that comes, such as a heartbeat, moves the library's deadline on.
	defer time.AfterFunc(closePatience+lastRead, func() { _ = c.ahead.Close() }).Stop()
	_ = c.conn.CloseDeadline(time.Now().Add(closePatience))
	<-c.done
}
