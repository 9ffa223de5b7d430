package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// The stages that a session reaches.
const (
	notConnected = iota
	loggedIn
	consuming
)

const (
	// readAhead bounds the bytes of bodies that the connection reads before they are received.
	readAhead = 1 << 20

	// answerPatience bounds the wait for the broker's answer at the end of a session.
	answerPatience = 2 * time.Second
)

var (
	errReturned  = errors.New("a message was requeued, which ends the channel of an ordered consumer")
	errCancelled = errors.New("the broker has ended the consumer: its queue was deleted or has moved, or a message was held for longer than the consumer timeout")
)

// A consumerSession is one connection with one channel. After Stopping has ended, no handler starts
// for its deliveries, and no running handler begins another attempt.
type consumerSession struct {
	engine.Session
	conn       *bridge.Connection
	channel    *amqp.Channel
	deliveries <-chan amqp.Delivery
	refusals   <-chan *amqp.Error // why the broker has closed the channel
	open       *openDeliveries
	end        context.CancelCauseFunc // ends Stopping, and so the session
	handling   context.Context         // the context of the handlers; ends ConsumerOptions.Drain after Stopping
}

// openSession connects and begins to consume. It also returns the stage that it has reached.
func openSession(ctx context.Context, broker *bridge.Broker, queue string, opts *ConsumerOptions) (_ *consumerSession, reached int, err error) {
	conn, err := broker.Connect(ctx)
	if err != nil {
		return nil, notConnected, err
	}
	conn.BoundReadAhead(readAhead)
	channel, deliveries, err := consume(ctx, conn, queue, opts.Prefetch)
	if err != nil {
		conn.Close()
		return nil, loggedIn, err
	}
	s := &consumerSession{Session: engine.Session{Ordered: opts.ordered(), OneByOne: opts.Workers == 1},
		conn: conn, channel: channel, deliveries: deliveries, refusals: channel.NotifyClose(make(chan *amqp.Error, 1)),
		open: newOpenDeliveries(channel.Ack, opts.Workers, opts.Prefetch)}
	s.Stopping, s.end = context.WithCancelCause(ctx)
	handling, cancel := engine.Outliving(s.Stopping, opts.Drain)
	context.AfterFunc(handling, cancel) // stops its timer; handlers may outlive the session
	s.handling = engine.WithSession(handling, &s.Session)
	return s, consuming, nil
}

// consume opens a channel and begins to consume.
func consume(ctx context.Context, conn *bridge.Connection, queue string, prefetch int) (*amqp.Channel, <-chan amqp.Delivery, error) {
	defer context.AfterFunc(ctx, conn.Close)() // the AMQP library's channels take no context
	channel, err := conn.Channel()
	if err != nil {
		return nil, nil, err
	}
	if err := conn.Request(func() error { return channel.Qos(prefetch, 0, false) }); err != nil {
		return nil, nil, fmt.Errorf("set prefetch: %w", err)
	}
	const autoAck, exclusive, noLocal, noWait = false, false, false, false
	var deliveries <-chan amqp.Delivery
	err = conn.Request(func() (err error) {
		deliveries, err = channel.Consume(queue, "", autoAck, exclusive, noLocal, noWait, nil)
		return err
	})
	refused := new(amqp.Error)
	switch {
	case errors.As(err, &refused) && refused.Code == amqp.NotFound:
		return nil, nil, fmt.Errorf("the queue is missing; declare it, or start the program that declares it: %w", err)
	case errors.As(err, &refused) && refused.Code == amqp.AccessRefused:
		return nil, nil, fmt.Errorf("the broker refuses the queue; let the login read it (rabbitmqctl set_permissions), or stop its exclusive consumer: %w", err)
	case err != nil:
		return nil, nil, fmt.Errorf("begin to consume: %w", err)
	}
	return channel, deliveries, nil
}

func (s *consumerSession) over() bool { return s.Stopping.Err() != nil }

// receive passes the deliveries to take, and sends the gathered acks, until the session is over. If
// the deliveries end, receive ends the session and returns the reason.
func (s *consumerSession) receive(take func(d amqp.Delivery)) error {
	var flush <-chan time.Time
	for {
		select {
		case <-s.open.gathered:
			if flush == nil {
				flush = time.After(ackPause)
			}
		case <-flush:
			flush = nil
			_ = s.open.flush() // if it fails, the end of the channel returns the messages
		case d, open := <-s.deliveries:
			if !open {
				err := s.endReason()
				s.end(err)
				return err
			}
			s.conn.Received(d)
			take(d)
		case <-s.Stopping.Done():
			return nil
		}
	}
}

// endReason returns why the deliveries have ended. The library reports the reason of the channel's or
// the connection's end before it ends them.
func (s *consumerSession) endReason() error {
	select {
	case reason := <-s.refusals:
		if reason != nil {
			return fmt.Errorf("channel closed: %w", reason)
		}
	default:
	}
	if err := s.conn.Err(); err != nil {
		return err
	}
	return errCancelled
}

// close closes the connection, and first waits, if it is told to, until the broker has read all acks.
// The broker's answers arrive behind deliveries, so close receives these meanwhile. They stay unacked.
func (s *consumerSession) close(awaitAcks bool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if awaitAcks {
			s.awaitAcks()
		}
		s.conn.Close()
	}()
	deliveries := s.deliveries
	for {
		select {
		case d, open := <-deliveries:
			if !open {
				deliveries = nil
				continue
			}
			s.conn.Received(d)
		case <-closed:
			return
		}
	}
}

// awaitAcks returns when the broker has read all acks, or after answerPatience. Without this wait acks
// just before a channel's end may be lost; after dozens of single acks some may be lost nevertheless
// (both measured on RabbitMQ 3.10).
func (s *consumerSession) awaitAcks() {
	defer time.AfterFunc(answerPatience, s.conn.Close).Stop()
	_ = s.channel.Qos(1, 0, false)
}
