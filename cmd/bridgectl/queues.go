package main

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// depths reads how many messages and consumers queues have. One that does not exist is
// an error.
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

// held counts what verifiers hold of their queues, unacked. It returns nil without an error if
// nobody can tell: the management API is not named, or counts nothing.
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

// lookAt asks for a queue without creating it, on a channel of its own: a refusal closes
// the channel.
func lookAt(conn *bridge.Connection, name string) (amqp.Queue, error) {
	ch, err := conn.Channel()
	if err != nil {
		return amqp.Queue{}, err
	}
	defer func() { _ = ch.Close() }()
	const durable, autoDelete, exclusive, noWait = true, false, false, false
	queue, err := ch.QueueDeclarePassive(name, durable, autoDelete, exclusive, noWait, nil)
	if err != nil {
		return amqp.Queue{}, fmt.Errorf("look at queue %q: %w", name, err)
	}
	return queue, nil
}

// missing tells whether err says that a queue does not exist.
func missing(err error) bool { return refusedWith(err, amqp.NotFound) }

// denied tells whether err says that the login has no right.
func denied(err error) bool { return refusedWith(err, amqp.AccessRefused) }

func refusedWith(err error, code int) bool {
	var refusal *amqp.Error
	return errors.As(err, &refusal) && refusal.Code == code
}
