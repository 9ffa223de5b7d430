package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A Publisher is a channel in confirm mode. It publishes without waiting, and
// tells of each message whether the broker has it (DESIGN section 4, rules 2
// and 4): confirmed *and* not returned.
//
// The broker returns an unroutable message and then acks it all the same, and
// the library hands both over on different Go channels. Its reader has put the
// return into its channel before it handles the ack, so whoever holds the ack and
// then empties the channel of returns has seen the return, if the reader was
// never kept waiting there (it gives up on a full channel). That is why returns
// holds as much as can ever be in flight.
//
// The ack is read from the message's own DeferredConfirmation. The library's
// NotifyPublish must not be used: where the broker nacks one message early and
// acks those around it later with one multiple ack, as it does when a full queue
// and a slow one are published to in turns, it reports the nacked one as acked.
type Publisher struct {
	conn    *Connection
	ch      *amqp.Channel
	turn    chan struct{} // capacity 1: whoever holds the token publishes
	room    chan struct{} // a token for each message in flight
	pending chan publication
	returns chan amqp.Return
	done    chan struct{}

	mu  sync.Mutex
	err error
}

// publication is one message in flight.
type publication struct {
	key     publicationKey
	confirm *amqp.DeferredConfirmation
	report  func(error)
}

type publicationKey struct {
	id string
	Target
}

// Publisher opens a channel that has at most inFlight messages unconfirmed.
func (c *Connection) Publisher(inFlight int) (*Publisher, error) {
	ch, err := c.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		_ = ch.Close()
		return nil, fmt.Errorf("open publishing channel: %w: %w", ErrUnavailable, err)
	}
	p := &Publisher{
		conn:    c,
		ch:      ch,
		turn:    make(chan struct{}, 1),
		room:    make(chan struct{}, inFlight),
		pending: make(chan publication, inFlight),
		returns: ch.NotifyReturn(make(chan amqp.Return, inFlight)),
		done:    make(chan struct{}),
	}
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	go p.collect(closes)
	return p, nil
}

// Publish sends msg, persistent or not as it says and always mandatory, and
// returns as soon as it is on its way. It waits while inFlight messages are
// unconfirmed, or while the broker blocks publishing.
//
// If Publish returns an error, nothing was sent and report is not called; the
// error wraps ErrInvalidMessage if this message can never be sent, else
// ErrUnavailable or ErrBlocked.
// Otherwise report is called exactly once, from the publisher's own goroutine,
// which it must not block: with nil when the broker has taken the message to a
// queue, else with an error that wraps ErrReturned, ErrNacked or ErrUnconfirmed.
func (p *Publisher) Publish(ctx context.Context, to Target, msg amqp.Publishing, report func(error)) error {
	if err := p.fits(to, msg); err != nil {
		return fmt.Errorf("publish: %w: %w", ErrInvalidMessage, err)
	}
	if err := p.conn.waitOpen(ctx); err != nil {
		return err
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-p.done:
		return p.Err()
	case <-ctx.Done():
		return p.busy(ctx)
	}
	select {
	case p.room <- struct{}{}:
	case <-p.done:
		return p.Err()
	case <-ctx.Done():
		return p.busy(ctx)
	}
	if !p.conn.burst.waitRoom(ctx) {
		<-p.room
		return p.busy(ctx)
	}
	const mandatory, immediate = true, false
	confirm, err := p.ch.PublishWithDeferredConfirm(to.Exchange, to.RoutingKey, mandatory, immediate, msg)
	if err != nil {
		// The channel or the connection is over, and the broker cannot have the
		// whole message.
		<-p.room
		return fmt.Errorf("publish: %w: %w", ErrUnavailable, err)
	}
	p.pending <- publication{publicationKey{msg.MessageId, to}, confirm, report}
	return nil
}

// fits refuses what would end the channel or the connection.
func (p *Publisher) fits(to Target, msg amqp.Publishing) error {
	if err := validateShort(to, msg); err != nil {
		return err
	}
	if err := validateNames(msg.Headers); err != nil {
		return err
	}
	if size, frame := headerBytes(msg), p.conn.conn.Config.FrameSize; frame > 0 && size > frame {
		return fmt.Errorf("headers and properties of %d bytes do not fit into a frame of %d", size, frame)
	}
	return msg.Headers.Validate()
}

// busy is the error of a context that ended before anything was sent.
func (p *Publisher) busy(ctx context.Context) error {
	if reason := p.conn.Blocked(); reason != "" {
		return fmt.Errorf("%w: %s", ErrBlocked, reason)
	}
	return fmt.Errorf("%w: broker does not take messages fast enough: %w", ErrUnavailable, context.Cause(ctx))
}

// collect takes the confirms in order and reports them.
func (p *Publisher) collect(closes <-chan *amqp.Error) {
	returned := make(map[publicationKey]int)
	for {
		select {
		case pub := <-p.pending:
			<-pub.confirm.Done() // the end of the channel nacks it
			if !pub.confirm.Acked() && p.ch.IsClosed() {
				p.end(<-closes, returned, pub)
				return
			}
			p.report(pub, returned)
		case cause := <-closes:
			p.end(cause, returned)
			return
		}
	}
}

// report tells what became of a message whose confirm is there.
func (p *Publisher) report(pub publication, returned map[publicationKey]int) {
	p.drainReturns(returned)
	err := p.Err()
	switch {
	case returned[pub.key] > 0:
		if returned[pub.key]--; returned[pub.key] == 0 {
			delete(returned, pub.key)
		}
		err = ErrReturned
	case pub.confirm.Acked():
		err = nil
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrUnconfirmed, err)
	default:
		err = ErrNacked
	}
	pub.report(err)
	<-p.room
}

func (p *Publisher) drainReturns(returned map[publicationKey]int) {
	for {
		select {
		case r, ok := <-p.returns:
			if !ok {
				p.returns = nil
				return
			}
			returned[publicationKey{r.MessageId, Target{r.Exchange, r.RoutingKey}}]++
		default:
			return
		}
	}
}

// end lets nothing else in, and reports what is left: what was not acked before
// is unconfirmed.
func (p *Publisher) end(cause *amqp.Error, returned map[publicationKey]int, left ...publication) {
	p.mu.Lock()
	p.err = fmt.Errorf("%w: publishing channel closed", ErrUnavailable)
	if cause != nil {
		p.err = fmt.Errorf("%w: publishing channel closed: %w", ErrUnavailable, cause)
	}
	p.mu.Unlock()
	close(p.done)
	p.turn <- struct{}{} // whoever was publishing has finished; nobody follows
	for {
		for _, pub := range left {
			<-pub.confirm.Done()
			p.report(pub, returned)
		}
		select {
		case pub := <-p.pending:
			left = []publication{pub}
		default:
			return
		}
	}
}

// Done is closed when the channel is over, just before what was in flight is
// reported as unconfirmed. Err then says why.
func (p *Publisher) Done() <-chan struct{} { return p.done }

// Err returns nil while the channel is alive, and an error that wraps
// ErrUnavailable afterwards.
func (p *Publisher) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Close closes the channel; what is unconfirmed is reported as such.
func (p *Publisher) Close() { _ = p.ch.Close() }

// Refusal returns the broker's words if err comes from a channel that the broker
// closed because of what was published on it: a missing exchange (404), no right
// (403), a refused property or size (406) and their like. It returns nil if the
// connection as a whole failed.
func Refusal(err error) *amqp.Error {
	var amqpErr *amqp.Error
	if errors.As(err, &amqpErr) && amqpErr.Server && amqpErr.Recover {
		return amqpErr
	}
	return nil
}
