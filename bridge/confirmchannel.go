package bridge

import (
	"context"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/internal/limits"
	"github.com/twoqueue/twoqueue/bridge/internal/unreadable"
)

// A confirmChannel is a channel in confirm mode. It does a Publisher's work until it is closed or
// retired.
//
// Confirms of one target are collected one after the other. Targets do not wait for each other.
//
// The broker returns an unroutable message and then acks it all the same, and the library delivers
// return and ack on different Go channels. The library's reader sends the return before it handles
// the ack. So a goroutine that has the ack and then empties the channel of returns has seen the
// return. The reader drops a return if the Go channel is full; that is why returns has room for
// as many as can ever be in flight.
//
// The ack is read from the message's own DeferredConfirmation. NotifyPublish must not be used: if
// the broker nacks one message early, and later acks its neighbours with one multiple ack,
// NotifyPublish reports the nacked message as acked. That happens when messages go to a full queue
// and to a slow queue in turns.
type confirmChannel struct {
	conn    *Connection
	ch      *amqp.Channel
	turn    chan struct{} // capacity 1: the goroutine that holds the token publishes
	room    chan struct{} // one token for each message in flight
	retired chan struct{} // closed when nothing more is to be published
	freed   chan struct{} // capacity 1: a token of room was given back after that
	done    chan struct{}
	ended   func(error) // called before done is closed

	mu          sync.Mutex
	err         error
	unconfirmed map[Target][]publication // messages in flight, the oldest first

	returning sync.Mutex
	returns   chan amqp.Return
	returned  map[publicationKey]int
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

// confirmChannel opens a confirm channel. ended is called when that channel has ended.
func (c *Connection) confirmChannel(inFlight int, ended func(error)) (*confirmChannel, error) {
	ch, err := c.Channel()
	if err != nil {
		return nil, err
	}
	if err := c.Request(func() error { return ch.Confirm(false) }); err != nil {
		_ = ch.Close()
		return nil, fmt.Errorf("open publishing channel: %w: %w", ErrUnavailable, err)
	}
	p := &confirmChannel{
		conn:        c,
		ch:          ch,
		turn:        make(chan struct{}, 1),
		room:        make(chan struct{}, inFlight),
		retired:     make(chan struct{}),
		freed:       make(chan struct{}, 1),
		done:        make(chan struct{}),
		ended:       ended,
		unconfirmed: make(map[Target][]publication),
		returns:     ch.NotifyReturn(make(chan amqp.Return, inFlight)),
		returned:    make(map[publicationKey]int),
	}
	closes := ch.NotifyClose(make(chan *amqp.Error, 1))
	go p.watch(closes)
	return p, nil
}

// publish implements Publisher.Publish on this channel.
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
		// The channel or the connection is over, and the broker cannot have received the whole
		// message.
		p.giveBack()
		return fmt.Errorf("publish: %w: %w", ErrUnavailable, err)
	}
	p.mu.Lock()
	first := len(p.unconfirmed[to]) == 0
	p.unconfirmed[to] = append(p.unconfirmed[to], publication{publicationKey{msg.MessageId, to}, confirm, report})
	p.mu.Unlock()
	if first {
		go p.collect(to) // ends with the last confirm, or with the channel
	}
	return nil
}

// giveBack returns a token of room.
func (p *confirmChannel) giveBack() {
	<-p.room
	select {
	case <-p.retired:
		signal(p.freed)
	default:
	}
}

// fits refuses a message that would end the channel or the connection.
func (p *confirmChannel) fits(to Target, msg amqp.Publishing) error {
	if err := limits.Publishing(to.Exchange, to.RoutingKey, msg); err != nil {
		return err
	}
	if size, frame := limits.HeaderBytes(msg), p.conn.conn.Config.FrameSize; frame > 0 && size > frame {
		return fmt.Errorf("headers and properties of %d bytes do not fit into a frame of %d", size, frame)
	}
	return nil
}

// busy is the error of a context that ended before the message was sent.
func (p *confirmChannel) busy(ctx context.Context) error {
	if reason := p.conn.Blocked(); reason != "" {
		return fmt.Errorf("%w: %s", ErrBlocked, reason)
	}
	return fmt.Errorf("%w: broker does not take messages fast enough: %w", ErrUnavailable, context.Cause(ctx))
}

// watch ends the channel when it is closed, or when it is retired and empty.
func (p *confirmChannel) watch(closes <-chan *amqp.Error) {
	for retired := p.retired; retired != nil || len(p.room) > 0; {
		select {
		case <-retired:
			retired = nil
		case <-p.freed:
		case cause := <-closes:
			p.end(cause)
			return
		}
	}
	p.end(nil)
	for len(p.room) > 0 { // a Publish may have been under way
		select {
		case <-p.freed:
		case <-closes:
			return
		}
	}
	_ = p.ch.Close()
}

// collect waits for the confirms of one target's messages, and reports them, until no message
// is left.
func (p *confirmChannel) collect(to Target) {
	for {
		p.mu.Lock()
		pub := p.unconfirmed[to][0]
		p.mu.Unlock()
		<-pub.confirm.Done() // the end of the channel nacks it
		if !pub.confirm.Acked() && p.ch.IsClosed() {
			<-p.done // after that p.Err is the reason
		}
		p.report(pub)
		p.mu.Lock()
		rest := p.unconfirmed[to][1:]
		if len(rest) == 0 {
			delete(p.unconfirmed, to)
		} else {
			p.unconfirmed[to] = rest
		}
		p.mu.Unlock()
		p.giveBack()
		if len(rest) == 0 {
			return
		}
	}
}

// report reports a message whose confirm has come.
func (p *confirmChannel) report(pub publication) {
	err := p.Err()
	switch {
	case p.wasReturned(pub.key):
		err = ErrReturned
	case pub.confirm.Acked():
		err = nil
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrUnconfirmed, err)
	default:
		err = ErrNacked
	}
	pub.report(err)
}

// wasReturned drains the returns, and reports whether this message is one of them. The message's
// confirm must have come.
func (p *confirmChannel) wasReturned(key publicationKey) bool {
	p.returning.Lock()
	defer p.returning.Unlock()
	for more := true; more; {
		select {
		case r, open := <-p.returns:
			if !open {
				p.returns = nil
				continue
			}
			p.returned[publicationKey{returnedID(r), Target{r.Exchange, r.RoutingKey}}]++
		default:
			more = false
		}
	}
	n := p.returned[key]
	switch n {
	case 0:
	case 1:
		delete(p.returned, key)
	default:
		p.returned[key] = n - 1
	}
	return n > 0
}

// returnedID is the ID of a returned message. A broker that adds headers to published messages may
// return more headers than the library can read.
func returnedID(r amqp.Return) string {
	if id, ok := r.Headers[unreadable.IDHeader].(string); ok && r.MessageId == "" {
		return id
	}
	return r.MessageId
}

// end refuses further messages, and makes the unacked messages unconfirmed.
func (p *confirmChannel) end(cause *amqp.Error) {
	p.mu.Lock()
	p.err = fmt.Errorf("%w: publishing channel closed", ErrUnavailable)
	switch {
	case p.conn.unanswered(cause):
		p.err = fmt.Errorf("publishing channel closed: %w", &noAnswer{p.conn.host})
	case cause != nil:
		p.err = fmt.Errorf("%w: publishing channel closed: %w", ErrUnavailable, cause)
	}
	p.mu.Unlock()
	p.ended(p.err)
	close(p.done)
	p.turn <- struct{}{} // the last Publish has finished, and no other may begin
}

// Err returns nil while the channel is alive, and an error that wraps
// ErrUnavailable afterwards.
func (p *confirmChannel) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
