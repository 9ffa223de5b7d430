package main

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// depths reads the numbers of messages and consumers of queues. A missing queue is an error.
func (a *app) depths(ctx context.Context, names ...string) (map[string]amqp.Queue, error) {
	conn, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Close)()
	depths := make(map[string]amqp.Queue, len(names))
	for _, name := range names {
		if depths[name], err = lookAt(conn, name); err != nil {
			return nil, err
		}
	}
	return depths, nil
}

// held counts the unacked messages of the verifiers' queues. It returns nil without an error if the
// number is unknown: no management API is named, or the API counts nothing.
func (a *app) held(ctx context.Context, m *management, queues []string) (*int64, error) {
	if m == nil {
		return nil, nil
	}
	held := int64(0)
	for _, name := range queues {
		q, err := m.queue(ctx, name)
		if err != nil {
			return nil, about("BRIDGE_MANAGEMENT_URL", err)
		}
		if q.Unacked == nil {
			return nil, nil
		}
		held += *q.Unacked
	}
	return &held, nil
}

// lookAt reads a queue's depth without creating the queue.
func lookAt(conn *bridge.Connection, name string) (queue amqp.Queue, err error) {
	const durable, autoDelete, exclusive, noWait = true, false, false, false
	err = conn.OnChannel(func(ch *amqp.Channel) (err error) {
		queue, err = ch.QueueDeclarePassive(name, durable, autoDelete, exclusive, noWait, nil)
		return err
	})
	if err != nil {
		return queue, fmt.Errorf("look at queue %q: %w", name, err)
	}
	return queue, nil
}

// lookAtExchange returns nil if an exchange exists, whatever its type.
func lookAtExchange(conn *bridge.Connection, name string) error {
	const durable, autoDelete, internal, noWait = true, false, false, false
	return conn.OnChannel(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeDirect, durable, autoDelete, internal, noWait, nil)
	})
}

// missing reports whether err says that a queue does not exist.
func missing(err error) bool { return refusedWith(err, amqp.NotFound) }

// denied reports whether err says that the login has no right.
func denied(err error) bool { return refusedWith(err, amqp.AccessRefused) }

func refusedWith(err error, code int) bool {
	var refusal *amqp.Error
	return errors.As(err, &refusal) && refusal.Code == code
}
