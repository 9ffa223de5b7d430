package bridge

import (
	"context"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A confirmChannel is a channel in confirm mode, and does a Publisher's work until it
// is closed or retired.
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
type confirmChannel struct {
	conn    *Connection
	ch      *amqp.Channel
	turn    chan struct{} // capacity 1: whoever holds the token publishes
	room    chan struct{} // a token for each message in flight
	pending chan publication
	returns chan amqp.Return
	retired chan struct{} // closed when no more is to be published
	freed   chan struct{} // capacity 1: room was given back unused
	done    chan struct{}
	ended   func(error) // called before done is closed

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

// confirmChannel opens one. ended is called when it has ended.
func (c *Connection) confirmChannel(inFlight int, ended func(error)) (*confirmChannel, error) {
	ch, err := c.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		_ = ch.Close()
		return nil, fmt.Errorf("open publishing channel: %w: %w", ErrUnavailable, err)
	}
	p := &confirmChannel{
		conn:    c,
		ch:      ch,
		turn:    make(chan struct{}, 1),
		room:    make(chan struct{}, inFlight),
		pending: make(chan publication, inFlight),
		returns: ch.NotifyReturn(make(chan amqp.Return, inFlight)),
		retired: make(chan struct{}),
		freed:   make(chan struct{}, 1),
		done:    make(chan struct{}),
		ended:   ended,
	}
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	go p.collect(closes)
	return p, nil
}

// publish is Publisher.Publish.
func (p *confirmChannel) publish(ctx context.Context, to Target, msg amqp.Publishing, report func(error)) error {
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
		p.giveBack()
		return p.busy(ctx)
	}
	const mandatory, immediate = true, false
	confirm, err := p.ch.PublishWithDeferredConfirm(to.Exchange, to.RoutingKey, mandatory, immediate, msg)
	if err != nil {
		// The channel or the connection is over, and the broker cannot have the
		// whole message.
		p.giveBack()
		return fmt.Errorf("publish: %w: %w", ErrUnavailable, err)
	}
	p.pending <- publication{publicationKey{msg.MessageId, to}, confirm, report}
	return nil
}

// giveBack gives room back that was not used.
func (p *confirmChannel) giveBack() {
	<-p.room
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

// fits refuses what would end the channel or the connection.
func (p *confirmChannel) fits(to Target, msg amqp.Publishing) error {
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
func (p *confirmChannel) busy(ctx context.Context) error {
	if reason := p.conn.Blocked(); reason != "" {
		return fmt.Errorf("%w: %s", ErrBlocked, reason)
	}
	return fmt.Errorf("%w: broker does not take messages fast enough: %w", ErrUnavailable, context.Cause(ctx))
}

// collect takes the confirms in order and reports them.
func (p *confirmChannel) collect(closes <-chan *amqp.Error) {
	returned := make(map[publicationKey]int)
	retired := p.retired
	for {
		if retired == nil && len(p.room) == 0 {
			p.end(nil, returned)
			_ = p.ch.Close()
			return
		}
		select {
		case <-retired:
			retired = nil
		case <-p.freed:
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
func (p *confirmChannel) report(pub publication, returned map[publicationKey]int) {
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

func (p *confirmChannel) drainReturns(returned map[publicationKey]int) {
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
func (p *confirmChannel) end(cause *amqp.Error, returned map[publicationKey]int, left ...publication) {
	p.mu.Lock()
	p.err = fmt.Errorf("%w: publishing channel closed", ErrUnavailable)
	if cause != nil {
		p.err = fmt.Errorf("%w: publishing channel closed: %w", ErrUnavailable, cause)
	}
	p.mu.Unlock()
	p.ended(p.err)
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

// Err returns nil while the channel is alive, and an error that wraps
// ErrUnavailable afterwards.
func (p *confirmChannel) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
