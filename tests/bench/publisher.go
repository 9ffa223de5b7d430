package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A publisher publishes as a program written by hand with the client library does. Its channels are
// in confirm mode, its messages are mandatory and persistent, and it waits for all confirms
// together.
type publisher struct {
	conn     *amqp.Connection
	channels []*amqp.Channel
	next     atomic.Uint64
	returned atomic.Int64
}

// newPublisher opens a connection with that number of channels.
func newPublisher(url string, channels int) (*publisher, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, fmt.Errorf("open publisher: %w", err)
	}
	p := &publisher{conn: conn}
	for range channels {
		ch, err := conn.Channel()
		if err == nil {
			err = ch.Confirm(false)
		}
		if err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("open publisher: %w", err)
		}
		returns := ch.NotifyReturn(make(chan amqp.Return, 1))
		go func() {
			for range returns {
				p.returned.Add(1)
			}
		}()
		p.channels = append(p.channels, ch)
	}
	return p, nil
}

// A letter is a message for a queue.
type letter struct {
	queue, id string
	headers   amqp.Table
	body      []byte
}

// publish publishes all letters and waits for their confirms.
func (p *publisher) publish(ctx context.Context, letters ...letter) error {
	ch := p.channels[p.next.Add(1)%uint64(len(p.channels))]
	confirms := make([]*amqp.DeferredConfirmation, len(letters))
	for i, l := range letters {
		confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", l.queue, true, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: l.id, Headers: l.headers, Body: l.body})
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		confirms[i] = confirm
	}
	for _, confirm := range confirms {
		acked, err := confirm.WaitContext(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("await confirm: %w", err)
		case !acked:
			return errors.New("nacked")
		}
	}
	if n := p.returned.Load(); n > 0 {
		return fmt.Errorf("%d messages returned", n)
	}
	return nil
}

func (p *publisher) close() { _ = p.conn.Close() }
