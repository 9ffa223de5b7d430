package idempotency

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
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

	// longRun is the time after which the messages of a handler no longer count as held. Otherwise a
	// handler that hangs, with more than half of ConsumerOptions.MaxBytes, would keep all later
	// messages out.
	longRun = time.Minute

	// unackedPause is the pause before a delivery that its handler has neither acked nor rejected goes
	// back. Without it the delivery would come again at the broker's speed.
	unackedPause = time.Second
)

var (
	errReturned  = errors.New("a message was requeued, which ends the channel of an ordered consumer")
	errCancelled = errors.New("the broker has ended the consumer: its queue was deleted or has moved, or a message was held for longer than the consumer timeout")
)

// A consumerSession is one connection with one channel. After Stopping has ended, no handler starts
// for its deliveries, and no running handler begins another attempt.
type consumerSession struct {
	engine.Session
	channel  *amqp.Channel
	open     *openDeliveries
	end      context.CancelCauseFunc // ends Stopping, and so the session
	handling context.Context         // the context of the handlers; ends ConsumerOptions.Drain after Stopping
}

func (s *consumerSession) over() bool { return s.Stopping.Err() != nil }

// session consumes over one connection until the connection or ctx ends. If ctx ends, it drains.
func (c *Consumer) session(ctx, patience context.Context) (reached int, err error) {
	conn, err := c.broker.Connect(ctx)
	if err != nil {
		return notConnected, err
	}
	conn.BoundReadAhead(readAhead)
	channel, deliveries, err := c.open(ctx, conn)
	if err != nil {
		conn.Close()
		return loggedIn, err
	}
	refusals := channel.NotifyClose(make(chan *amqp.Error, 1))
	s := &consumerSession{channel: channel, open: newOpenDeliveries(channel.Ack, c.opts.Workers, c.opts.Prefetch), Session: engine.Session{Ordered: c.opts.ordered(), OneByOne: c.opts.Workers == 1}}
	s.Stopping, s.end = context.WithCancelCause(ctx)
	handling, cancel := engine.Outliving(s.Stopping, c.opts.Drain)
	context.AfterFunc(handling, cancel) // stops its timer; handlers may outlive the session
	s.handling = engine.WithSession(handling, &s.Session)

	c.connected()
	c.log.Info("consumer session started")
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
		case d, open := <-deliveries:
			if open {
				conn.Received(d)
				c.take(s, d)
				continue
			}
			err = endReason(conn, refusals)
			s.end(err)
			_ = s.open.flush() // if only the consumer has ended, the channel is still open
			c.jobs.prune()
			closeReceiving(conn, deliveries, func() {
				if errors.Is(err, errCancelled) {
					awaitRead(conn, channel)
				}
			})
			return consuming, err
		case <-s.Stopping.Done():
			_ = s.open.flush() // later acks do not wait for others
			c.jobs.prune()
			err := context.Cause(s.Stopping)
			inTime := true
			if ctx.Err() != nil {
				err = c.drain(patience, deliveries, conn.Received)
				inTime = err == nil
			}
			closeReceiving(conn, deliveries, func() {
				if inTime {
					awaitRead(conn, channel)
				}
			})
			return consuming, err
		}
	}
}

// open begins to consume.
func (c *Consumer) open(ctx context.Context, conn *bridge.Connection) (*amqp.Channel, <-chan amqp.Delivery, error) {
	defer context.AfterFunc(ctx, conn.Close)() // the AMQP library's channels take no context
	channel, err := conn.Channel()
	if err != nil {
		return nil, nil, err
	}
	if err := channel.Qos(c.opts.Prefetch, 0, false); err != nil {
		return nil, nil, fmt.Errorf("set prefetch: %w", err)
	}
	const autoAck, exclusive, noLocal, noWait = false, false, false, false
	deliveries, err := channel.Consume(c.queue, "", autoAck, exclusive, noLocal, noWait, nil)
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

// endReason returns why the deliveries have ended. The library reports the reason of the channel's or
// the connection's end before it ends them.
func endReason(conn *bridge.Connection, refusals <-chan *amqp.Error) error {
	select {
	case reason := <-refusals:
		if reason != nil {
			return fmt.Errorf("channel closed: %w", reason)
		}
	default:
	}
	if err := conn.Err(); err != nil {
		return err
	}
	return errCancelled
}

// awaitRead returns when the broker has read all acks, or after answerPatience. Without this wait acks
// just before a channel's end may be lost; after dozens of single acks some may be lost nevertheless
// (both measured on RabbitMQ 3.10).
func awaitRead(conn *bridge.Connection, channel *amqp.Channel) {
	defer time.AfterFunc(answerPatience, conn.Close).Stop()
	_ = channel.Qos(1, 0, false)
}

// closeReceiving calls ask and closes the connection. The broker's answers arrive behind deliveries, so
// closeReceiving receives these meanwhile. They stay unacked.
func closeReceiving(conn *bridge.Connection, deliveries <-chan amqp.Delivery, ask func()) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		ask()
		conn.Close()
	}()
	for {
		select {
		case d, open := <-deliveries:
			if !open {
				deliveries = nil
				continue
			}
			conn.Received(d)
		case <-closed:
			return
		}
	}
}

// take queues a delivery for a worker.
func (c *Consumer) take(s *consumerSession, d amqp.Delivery) {
	a := &acknowledger{session: s}
	s.open.add(d.DeliveryTag, a)
	d.Acknowledger = a
	d = wire.Restored(d)
	release := c.memory.reserve(d)
	if release == nil {
		c.log.Info("no room for the message: it returns to the queue when half of ConsumerOptions.MaxBytes is free",
			"message_id", d.MessageId, "bytes", len(d.Body), "ends_session", s.Ordered)
		return
	}
	j := &job{session: s, delivery: d, acknowledger: a, key: c.key(d), release: release}
	if c.batch > 1 {
		a.passKey = func() { c.jobs.releaseKey(j) }
	}
	c.jobs.add(j)
}

// key returns the key of d's turn: d waits for earlier messages with the same key. Without a key,
// or if the order does not matter, d waits only for an earlier delivery of the same message.
func (c *Consumer) key(d amqp.Delivery) (key string) {
	switch {
	case c.opts.Workers == 1: // separate turns would let messages of other keys pass
		return ""
	case c.opts.Key == nil:
		return d.MessageId
	}
	defer func() {
		if v := recover(); v != nil {
			key = ""
			c.log.Error("ConsumerOptions.Key panicked", "message_id", d.MessageId, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	if key = c.opts.Key(d); key == "" {
		return d.MessageId
	}
	return key
}

// run calls the handler, and makes sure that each delivery is acked or rejected.
func (c *Consumer) run(jobs []*job) {
	defer time.AfterFunc(longRun, func() {
		for _, j := range jobs {
			j.release()
		}
	}).Stop()
	session, id := jobs[0].session, jobs[0].delivery.MessageId
	returned := false
	defer func() {
		if !returned { // after a panic, or runtime.Goexit
			var reason any = "runtime.Goexit"
			if v := recover(); v != nil {
				reason = v
			}
			c.log.Error("handler did not return", "message_id", id, "messages", len(jobs), "panic", reason, "stack", string(debug.Stack()))
		}
		c.handBackUnacked(jobs)
	}()
	ds := make([]amqp.Delivery, len(jobs))
	for n, j := range jobs {
		ds[n] = j.delivery
	}
	err := c.handle(session.handling, ds)
	returned = true
	switch {
	case err == nil:
	case errors.Is(err, ErrLeftUnacked) && session.over():
		c.log.Info("message left in the queue", "message_id", id, "messages", len(jobs), "reason", err)
	default:
		c.log.Warn("delivery not finished", "message_id", id, "messages", len(jobs), "error", err)
	}
}

// handBackUnacked hands back the deliveries that the handler has neither acked nor rejected.
func (c *Consumer) handBackUnacked(jobs []*job) {
	session := jobs[0].session
	open := slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool { return j.acknowledger.done.Load() })
	if len(open) == 0 || session.over() {
		return
	}
	c.log.Error("handler neither acked nor rejected the message; requeueing it",
		"message_id", open[0].delivery.MessageId, "messages", len(open), "retry_in", unackedPause)
	if !engine.Pause(session.Stopping, unackedPause) {
		return
	}
	for _, j := range open {
		_ = j.delivery.Nack(false, true) // otherwise the end of the channel returns it
	}
}

// An acknowledger is the Acknowledger of one delivery. It records whether the delivery was acked or
// rejected. In an ordered session it ends the channel instead of requeueing, because other messages
// could overtake a requeued one.
type acknowledger struct {
	session *consumerSession
	done    atomic.Bool
	passKey func() // in a batch consumer: releases the delivery's key before the worker ends; otherwise nil
}

// releaseKey releases the key of a delivery that was acked or rejected.
func (a *acknowledger) releaseKey(err error) error {
	if err == nil && a.passKey != nil {
		a.passKey()
	}
	return err
}

var _ amqp.Acknowledger = (*acknowledger)(nil)
var _ engine.BatchAcknowledger = (*acknowledger)(nil)
var _ engine.Closable = (*acknowledger)(nil)

func (a *acknowledger) Ack(tag uint64, multiple bool) error {
	a.done.Store(true)
	if multiple {
		return a.releaseKey(a.session.open.acknowledge(tag, multiple, func() error { return a.session.channel.Ack(tag, multiple) }))
	}
	return a.releaseKey(a.session.open.ackOne(tag, a.session.over))
}

// AckBatch acks deliveries of the session.
func (a *acknowledger) AckBatch(tags []uint64) error {
	acked, err := a.session.open.ackBatch(tags)
	for _, other := range acked {
		_ = other.releaseKey(err)
	}
	return err
}

func (a *acknowledger) Nack(tag uint64, multiple, requeue bool) error {
	if requeue {
		return a.requeue(tag, multiple)
	}
	a.done.Store(true)
	return a.releaseKey(a.session.open.acknowledge(tag, multiple, func() error { return a.session.channel.Nack(tag, multiple, false) }))
}

func (a *acknowledger) Reject(tag uint64, requeue bool) error {
	if requeue {
		return a.requeue(tag, false)
	}
	a.done.Store(true)
	return a.releaseKey(a.session.open.acknowledge(tag, false, func() error { return a.session.channel.Reject(tag, false) }))
}

// requeue does nothing once the session is over, because the broker would deliver the message here
// again. The end of the connection returns it.
func (a *acknowledger) requeue(tag uint64, multiple bool) error {
	a.done.Store(true)
	switch {
	case a.session.Ordered:
		return a.Close()
	case a.session.over():
		return nil
	}
	return a.session.open.acknowledge(tag, multiple, func() error { return a.session.channel.Nack(tag, multiple, true) })
}

// Close ends the session, which returns all unacked messages. A versions.HighWater calls it.
func (a *acknowledger) Close() error {
	a.done.Store(true)
	a.session.end(errReturned)
	return nil
}

// IsClosed reports whether no further delivery of the session may be handled.
func (a *acknowledger) IsClosed() bool { return a.session.over() || a.session.channel.IsClosed() }
