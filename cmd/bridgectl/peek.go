package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// A peek looks into a queue. It takes messages one at a time, without acking them, so the broker
// delivers no more than the caller asks for, and memory stays bounded. Unacked messages go back
// to the queue when the peek is closed, when the process dies and when the connection breaks: a
// peek loses no message.
//
// Until then no other consumer gets these messages. On RabbitMQ before 4.3 a message that is taken
// and goes back has used one delivery (of the million that bridge.Topology allows). The order may
// change.
type peek struct {
	conn  *bridge.Connection
	ch    *amqp.Channel
	queue string
	depth int // messages that were ready at the beginning
	acked int
	stop  func() bool
}

// peek opens a peek into a queue.
func (a *app) peek(ctx context.Context, queue string) (*peek, error) {
	conn, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	p := &peek{conn: conn, queue: queue, stop: context.AfterFunc(ctx, conn.Close)}
	if p.ch, err = conn.Channel(); err == nil {
		p.depth, err = p.ready()
	}
	if err != nil {
		p.abandon()
		return nil, fmt.Errorf("look into queue %q: %w", queue, err)
	}
	return p, nil
}

// ready returns the number of messages that are ready.
func (p *peek) ready() (n int, err error) {
	err = p.conn.Request(func() error {
		queue, err := p.ch.QueueDeclarePassive(p.queue, true, false, false, false, nil)
		n = queue.Messages
		return err
	})
	return n, err
}

// take takes one message, if one is ready.
func (p *peek) take() (d amqp.Delivery, ok bool, err error) {
	const autoAck = false
	err = p.conn.Request(func() (err error) {
		d, ok, err = p.ch.Get(p.queue, autoAck)
		return err
	})
	return d, ok, err
}

// each takes at most limit messages, and no more than were ready at the beginning.
func (p *peek) each(limit int, visit func(amqp.Delivery) error) (seen int, err error) {
	for limit = min(limit, p.depth); seen < limit; seen++ {
		d, ok, err := p.take()
		switch {
		case err != nil:
			return seen, fmt.Errorf("take a message from queue %q: %w", p.queue, err)
		case !ok:
			return seen, nil
		}
		if err := visit(d); err != nil {
			return seen, err
		}
	}
	return seen, nil
}

// ack removes messages from the queue.
func (p *peek) ack(tags ...uint64) error {
	for _, tag := range tags {
		if err := p.ch.Ack(tag, false); err != nil {
			return fmt.Errorf("remove a message from queue %q: %w", p.queue, err)
		}
		p.acked++
	}
	return nil
}

// flush waits until the broker has read the acks.
func (p *peek) flush() error {
	if err := p.conn.Request(func() error { return p.ch.Qos(1, 0, false) }); err != nil {
		return fmt.Errorf("remove messages from queue %q: %w", p.queue, err)
	}
	return nil
}

// close gives the unacked messages back, with a nack. From RabbitMQ 4.3 on a nack does not count
// as a failed delivery; the end of a channel does.
func (p *peek) close() error {
	const everything, multiple, requeue = 0, true, true
	err := p.ch.Nack(everything, multiple, requeue)
	if err == nil {
		err = p.flush()
	}
	if err == nil {
		err = p.seeBack()
	}
	p.abandon()
	if err != nil && !errors.Is(err, amqp.ErrClosed) {
		return fmt.Errorf("give back to queue %q: %w", p.queue, err)
	}
	return err
}

// seeBack waits until the messages that were given back are ready again. A quorum queue makes them
// ready some time after it has read the nack; until then the operator's next command would find too
// few. seeBack gives up after a second, since another consumer may take them.
func (p *peek) seeBack() error {
	const longest, interval = time.Second, 10 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for end := time.Now().Add(longest); ; <-ticker.C {
		ready, err := p.ready()
		if err != nil || ready >= p.depth-p.acked || time.Now().After(end) {
			return err
		}
	}
}

// abandon closes the connection, after which the broker requeues the unacked messages.
func (p *peek) abandon() {
	p.stop()
	p.conn.Close()
}

// look takes at most limit messages of a queue, and gives them back.
func (a *app) look(ctx context.Context, queue string, limit int, visit func(amqp.Delivery) error) (seen, depth int, err error) {
	p, err := a.peek(ctx, queue)
	if err != nil {
		return 0, 0, err
	}
	seen, err = p.each(limit, visit)
	if err != nil {
		p.abandon()
		return seen, p.depth, err
	}
	return seen, p.depth, p.close()
}
