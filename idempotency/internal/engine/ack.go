package engine

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The errors of a delivery that is not done, or not acked. Package idempotency has their comments.
var (
	ErrHandedBack  = errors.New("handed back to the queue")
	ErrLeftUnacked = errors.New("left unacked until its channel is closed")
	ErrNotAcked    = errors.New("handling is complete, but the ack did not reach the broker, which will deliver the message again")
)

// Ack acks a delivery that is done.
func (e *Engine) Ack(d amqp.Delivery) error {
	if err := d.Ack(false); err != nil {
		e.Count.NotAcked.Add(1)
		return fmt.Errorf("ack message %q: %w: %w", d.MessageId, ErrNotAcked, err)
	}
	return nil
}

// A BatchAcknowledger tracks which deliveries of its channel are unacked. AckBatch acks the
// deliveries with these tags, with as few acks as it can.
type BatchAcknowledger interface {
	AckBatch(tags []uint64) error
}

// AckAll acks deliveries of one channel.
func (e *Engine) AckAll(ds []amqp.Delivery) error {
	if channel, ok := ds[0].Acknowledger.(BatchAcknowledger); ok {
		tags := make([]uint64, len(ds))
		for i, d := range ds {
			tags[i] = d.DeliveryTag
		}
		if err := channel.AckBatch(tags); err != nil {
			e.Count.NotAcked.Add(uint64(len(ds)))
			return fmt.Errorf("ack %d messages: %w: %w", len(ds), ErrNotAcked, err)
		}
		return nil
	}
	var all []error
	for _, d := range ds {
		all = append(all, e.Ack(d))
	}
	return errors.Join(all...)
}

// giveUp dead-letters a message that is not to be attempted again. If that is not possible, the
// message is handed back after a pause, so that it does not come again at the broker's speed.
func (e *Engine) giveUp(caller, ctx context.Context, d amqp.Delivery, reason error) error {
	err := e.deadLetter(ctx, d, reason)
	if err != nil && !errors.Is(err, ErrNotAcked) {
		if !e.Opts.HandBack {
			e.Log.Error("message can be neither handled nor dead-lettered; retrying later", "message_id", d.MessageId,
				"retry_in", e.Opts.MaxDelay, "error", err, "reason", reason)
		}
		Pause(caller, e.Opts.MaxDelay)
		return e.Unfinished(caller, d, fmt.Errorf("%w: %w", err, reason))
	}
	e.Count.DeadLettered.Add(1)
	e.Log.Error("message dead-lettered", "message_id", d.MessageId,
		"exchange", d.Exchange, "routing_key", d.RoutingKey, "reason", reason)
	return err
}

// deadLetter returns nil or ErrNotAcked when the message is safe elsewhere.
func (e *Engine) deadLetter(ctx context.Context, d amqp.Delivery, reason error) error {
	switch {
	case e.Opts.Queues != nil:
		if err := e.Opts.Queues.deadLetter(ctx, d, reason); err != nil {
			return fmt.Errorf("dead-letter message: %w", err)
		}
		return e.Ack(d)
	case e.Opts.DeadLetter != nil:
		store := func() error { return e.Opts.DeadLetter(ctx, d, reason) }
		if err := e.RecoverPanic(e.Option("DeadLetter"), d.MessageId, store); err != nil {
			return fmt.Errorf("dead-letter message: %w", err)
		}
		return e.Ack(d)
	case e.Opts.DeadLetterExchange:
		if err := d.Nack(false, false); err != nil {
			return fmt.Errorf("reject message: %w", err)
		}
		return nil
	default:
		return fmt.Errorf("%s is set", e.Option("HandBack"))
	}
}

// Unfinished ends a delivery that is neither done nor given up. If caller was cancelled, the
// receiver stops and closes the channel. If caller has ended by a deadline, its own or
// Options.Hold, the receiver may go on: then the message must not keep its place in the prefetch.
func (e *Engine) Unfinished(caller context.Context, d amqp.Delivery, reason error) error {
	if errors.Is(caller.Err(), context.Canceled) {
		return e.leaveUnacked(d, reason)
	}
	return e.HandBack(d, reason)
}

// leaveUnacked does not tell the broker: the end of the channel returns d. If the order matters, it
// closes the channel at once, so that no later message of the channel is handled.
func (e *Engine) leaveUnacked(d amqp.Delivery, reason error) error {
	if e.InOrder {
		return e.HandBack(d, reason)
	}
	e.Count.LeftUnacked.Add(1)
	return fmt.Errorf("handle message %q: %w: %w", d.MessageId, ErrLeftUnacked, reason)
}

// HandBack requeues d with a nack. From RabbitMQ 4.3 on a nack, unlike a reject, does not count
// towards the queue's delivery limit. If the nack fails the channel is closed, and the broker
// requeues the message by itself. If the order matters, HandBack closes the channel instead.
func (e *Engine) HandBack(d amqp.Delivery, reason error) error {
	e.Count.HandedBack.Add(1)
	requeue := func() error { return d.Nack(false, true) }
	if e.InOrder {
		requeue = func() error { return closeChannel(d) }
	}
	if err := requeue(); err != nil {
		reason = fmt.Errorf("%w (requeue: %w)", reason, err)
	}
	return fmt.Errorf("handle message %q: %w: %w", d.MessageId, ErrHandedBack, reason)
}
