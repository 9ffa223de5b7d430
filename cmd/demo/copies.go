package main

import (
	"context"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// copies notes when and how often each message arrives at the target. It has a queue of its own there:
// the broker puts each message into the gateways' queue and into this one.
type copies struct {
	mu   sync.Mutex
	came []receipt
}

func (c *copies) arrivals() []receipt {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.came[:len(c.came):len(c.came)]
}

// listen notes the messages that arrive at the target, until the theatre is closed.
func (t *theatre) listen(ctx context.Context) error {
	conn, err := t.broker.Connect(ctx)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	t.undo = append(t.undo, func() error {
		conn.Close() // also deletes the queue
		<-ended
		return nil
	})
	var deliveries <-chan amqp.Delivery
	err = conn.Request(func() (err error) {
		deliveries, err = t.consumeCopies(conn.Channel())
		return err
	})
	if err != nil {
		close(ended)
		return err
	}
	t.copies = new(copies)
	go func() {
		defer close(ended)
		for d := range deliveries {
			t.copies.mu.Lock()
			t.copies.came = append(t.copies.came, receipt{d.MessageId, time.Now().UnixMicro()})
			t.copies.mu.Unlock()
		}
	}()
	return nil
}

func (t *theatre) consumeCopies(ch *amqp.Channel, err error) (<-chan amqp.Delivery, error) {
	if err != nil {
		return nil, err
	}
	const durable, autoDelete, autoAck, exclusive, noLocal, noWait = false, true, true, true, false, false
	queue, err := ch.QueueDeclare("", durable, autoDelete, exclusive, noWait, nil)
	if err != nil {
		return nil, err
	}
	if err := ch.QueueBind(queue.Name, "", t.Emails, noWait, nil); err != nil {
		return nil, err
	}
	return ch.Consume(queue.Name, "", autoAck, exclusive, noLocal, noWait, nil)
}
