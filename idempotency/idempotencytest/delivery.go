// Package idempotencytest makes deliveries, to test handlers without a broker.
//
//	d := idempotencytest.New(bridge.Message{RoutingKey: "emails", Publishing: amqp.Publishing{Body: []byte("two apples")}})
//	if err := sendEmail(t.Context(), d.Delivery); err != nil { // which calls dedup.Handle
//		t.Error(err)
//	}
//	if d.Outcome() != idempotencytest.Acked {
//		t.Errorf("the message is %s", d.Outcome())
//	}
//
// The Deduplicator is a real one on your own database; the example uses SQLite in a file. To test
// sender and receiver together, pass the messages of package sendertest to New.
//
// A Deduplicator that retries pauses between its attempts: set Options.Attempts or Options.MinDelay in
// a test of failures. These do not bound failures that do not count, such as an outage or an error
// bridge.ErrReturned of the handler. A Deduplicator retries them until Options.Hold ends, 6 minutes by
// default, and hands the message back: set a short Hold.
package idempotencytest

import (
	"fmt"
	"sync"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// An Outcome is the end of a delivery.
type Outcome string

// The outcomes.
const (
	Unacked      Outcome = "unacked"       // neither acked nor rejected: it comes again when the channel is closed
	Acked        Outcome = "acked"         // done
	HandedBack   Outcome = "handed back"   // requeued: it comes again at once
	DeadLettered Outcome = "dead-lettered" // rejected for good: it goes to the dead-letter exchange, if there is one
)

// A Delivery is a message as a broker delivers it. Give the handler its field Delivery. Any number
// of goroutines may use it.
type Delivery struct {
	amqp.Delivery
	acknowledger *acknowledger
}

// New returns the first delivery of m, as a verifier has forwarded it. A message without an ID gets
// one. For a delivery without an ID, empty the field MessageId afterwards.
func New(m bridge.Message) *Delivery {
	p := m.Publishing
	if m.ID == uuid.Nil && p.MessageId == "" {
		m.ID = uuid.Must(uuid.NewV7())
	}
	if p.MessageId == "" {
		p.MessageId = m.ID.String()
	}
	return deliver(amqp.Delivery{
		DeliveryTag: 1, Exchange: m.Exchange, RoutingKey: m.RoutingKey,
		Headers: p.Headers, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, DeliveryMode: amqp.Persistent,
		Priority: p.Priority, CorrelationId: p.CorrelationId, ReplyTo: p.ReplyTo, Expiration: p.Expiration,
		MessageId: p.MessageId, Timestamp: p.Timestamp, Type: p.Type, UserId: p.UserId, AppId: p.AppId, Body: p.Body,
	})
}

// Again returns the next delivery of the same message.
func (d *Delivery) Again() *Delivery {
	again := d.Delivery
	again.DeliveryTag++
	again.Redelivered = true
	return deliver(again)
}

func deliver(d amqp.Delivery) *Delivery {
	a := &acknowledger{outcome: Unacked}
	d.Acknowledger = a
	return &Delivery{d, a}
}

// Outcome returns the delivery's end; Unacked if it has none yet.
func (d *Delivery) Outcome() Outcome {
	d.acknowledger.mu.Lock()
	defer d.acknowledger.mu.Unlock()
	return d.acknowledger.outcome
}

// acknowledger is the Acknowledger of one delivery.
type acknowledger struct {
	mu      sync.Mutex
	outcome Outcome
}

func (a *acknowledger) set(outcome Outcome) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.outcome != Unacked {
		return fmt.Errorf("idempotencytest: the delivery is %s already; a broker would close the channel", a.outcome)
	}
	a.outcome = outcome
	return nil
}

func (a *acknowledger) Ack(uint64, bool) error { return a.set(Acked) }

func (a *acknowledger) Nack(_ uint64, _, requeue bool) error { return a.Reject(0, requeue) }

func (a *acknowledger) Reject(_ uint64, requeue bool) error {
	if requeue {
		return a.set(HandedBack)
	}
	return a.set(DeadLettered)
}

// Close returns the delivery with its channel, as versions.HighWater does to keep the order.
func (a *acknowledger) Close() error { return a.set(HandedBack) }

// IsClosed reports whether the channel has ended.
func (a *acknowledger) IsClosed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.outcome == HandedBack
}
