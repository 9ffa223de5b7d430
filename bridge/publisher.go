package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// renewPause is the shortest time between two channels of one Publisher.
const renewPause = 2 * time.Second

// A Publisher publishes without waiting, and reports for each message whether the broker has it:
// confirmed *and* not returned (rules 2 and 4 in the package's comment).
//
// After a nack the Publisher changes to a new channel, at most every two seconds. In a cluster a
// channel remembers which node leads a quorum queue. While that node is away the channel nacks
// every message, although the queue has another leader (measured on RabbitMQ 3.10: a node was cut
// off while a channel published to the queue for the first time). A full queue nacks on the new
// channel as well.
type Publisher struct {
	conn     *Connection
	inFlight int
	done     chan struct{}

	mu       sync.Mutex
	current  *confirmChannel
	renewing bool
	renewed  time.Time
	err      error
}

// Publisher opens a publishing channel with at most inFlight unconfirmed messages, or twice as many
// while the channel is renewed. The Publisher ends with the connection.
func (c *Connection) Publisher(inFlight int) (*Publisher, error) {
	p := &Publisher{conn: c, inFlight: inFlight, done: make(chan struct{})}
	if err := p.open(); err != nil {
		return nil, err
	}
	return p, nil
}

// open changes to a new channel.
func (p *Publisher) open() error {
	var next *confirmChannel
	opened := make(chan struct{})
	next, err := p.conn.confirmChannel(p.inFlight, func(err error) {
		<-opened
		p.end(next, err)
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	last := p.current
	if p.err != nil {
		last = next
	} else {
		p.current = next
	}
	p.mu.Unlock()
	close(opened)
	if last != nil {
		close(last.retired)
	}
	return nil
}

// end ends the publisher if its current channel has ended.
func (p *Publisher) end(ended *confirmChannel, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ended == p.current && p.err == nil {
		p.err = err
		close(p.done)
	}
}

// Publish sends msg, with its own delivery mode and always mandatory, and returns as soon as msg is
// queued for writing. It waits while inFlight messages are unconfirmed, or while the broker blocks
// publishing.
//
// If Publish returns an error, nothing was sent and report is not called. The error wraps
// ErrInvalidMessage if this message can never be sent, else ErrUnavailable or ErrBlocked. Otherwise
// report is called exactly once, from a goroutine of the publisher, which it must not block. Its
// argument is nil if the broker has put the message into a queue, else an error that wraps
// ErrReturned, ErrNacked or ErrUnconfirmed. The reports of one target come in the order of Publish,
// unless a nack makes the publisher change its channel. Targets do not wait for each other.
func (p *Publisher) Publish(ctx context.Context, to Target, msg amqp.Publishing, report func(error)) error {
	report = p.renewAfterNack(report)
	for {
		current := p.channel()
		err := current.publish(ctx, to, msg, report)
		if err == nil || ctx.Err() != nil || current == p.channel() {
			return err
		}
		// The channel was renewed meanwhile; nothing was sent.
	}
}

func (p *Publisher) channel() *confirmChannel {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.current
}

// renewAfterNack returns a function that calls report, and renews the channel after a nack.
func (p *Publisher) renewAfterNack(report func(error)) func(error) {
	return func(err error) {
		if errors.Is(err, ErrNacked) {
			p.nacked()
		}
		report(err)
	}
}

// nacked renews the channel, unless it was renewed within renewPause.
func (p *Publisher) nacked() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.renewing || time.Since(p.renewed) < renewPause {
		return
	}
	p.renewing = true
	go p.renew() // ends with the connection at the latest
}

func (p *Publisher) renew() {
	_ = p.open() // it fails only with the connection
	p.mu.Lock()
	defer p.mu.Unlock()
	p.renewing, p.renewed = false, time.Now()
}

// Close ends the publisher, and its channel once nothing is in flight. The connection stays.
func (p *Publisher) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil { // after that renew retires its own new channel
		p.err = fmt.Errorf("%w: publisher is closed", ErrUnavailable)
		close(p.done)
		close(p.current.retired)
	}
}

// Done is closed when the publisher has ended, and Err then gives the reason. If its channel was
// lost, the messages in flight are reported as unconfirmed just afterwards. After Close they are
// reported as usual.
func (p *Publisher) Done() <-chan struct{} { return p.done }

// Err returns nil until the publisher has ended, and an error that wraps ErrUnavailable afterwards.
func (p *Publisher) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Refusal returns the broker's words if err comes from a channel that the broker closed because
// of a message: a missing exchange (404), no right (403), a refused property or size (406) and
// the like. It returns nil for every other error, such as a lost connection.
func Refusal(err error) *amqp.Error {
	var amqpErr *amqp.Error
	if errors.As(err, &amqpErr) && amqpErr.Server && amqpErr.Recover {
		return amqpErr
	}
	return nil
}
