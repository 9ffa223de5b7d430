package main

import (
	"context"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// copies are a second ear at the target: the broker puts each message into the
// gateways' queue and into this one. They tell when a message has come, and how
// often, without the word of who handles it.
type copies struct {
	mu   sync.Mutex
	came []receipt
}

func (c *copies) arrivals() []receipt {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.came[:len(c.came):len(c.came)]
}

// listen begins to note what comes to the target, until the connection is closed.
func (t *theatre) listen(ctx context.Context) error {
	conn, err := t.broker.Connect(ctx)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	t.undo = append(t.undo, func() error {
		conn.Close() // and with it the queue
		<-ended
		return nil
	})
	deliveries, err := t.consumeCopies(conn.Channel())
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
