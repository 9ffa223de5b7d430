package idempotency

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Errors that answer a question; ask with errors.Is.
var (
	// ErrHandedBack: the message is in the queue again and will be delivered again. Its
	// handling is not committed, or nobody knows whether it is. The error also wraps its cause,
	// context.Canceled for example.
	ErrHandedBack = errors.New("handed back to the queue")

	// ErrLeftUnacked: the context of the call was cancelled, or had ended before, so the message
	// is neither acked nor requeued. Close its channel: then the broker delivers it again. (A
	// requeued message would come again at once, to a receiver that stops, and a quorum queue
	// would dead-letter or drop it at its delivery limit.) The handling is not committed, or it is
	// unknown whether it is. The error also wraps its cause, context.Canceled for example.
	ErrLeftUnacked = errors.New("left unacked until its channel is closed")

	// ErrNotAcked: the message is done, but the ack did not reach the broker, usually because
	// the channel is closed. It will be delivered again.
	ErrNotAcked = errors.New("done but not acked")
)

func (g *Guard) ack(d amqp.Delivery) error {
	if err := d.Ack(false); err != nil {
		g.count.notAcked.Add(1)
		return fmt.Errorf("ack message %q: %w: %w", d.MessageId, ErrNotAcked, err)
	}
	return nil
}

// giveUp brings a message that is not to be attempted again to where it is safe.
// If there is no such place, or it cannot be reached, the message is handed back
// after a pause, so that it does not go round as fast as the broker can deliver.
func (g *Guard) giveUp(caller, ctx context.Context, d amqp.Delivery, reason error) error {
	err := g.deadLetter(ctx, d, reason)
	if err != nil && !errors.Is(err, ErrNotAcked) {
		if !g.opts.HandBack {
			g.log.Error("message can be neither handled nor dead-lettered, trying again later", "message_id", d.MessageId,
				"delay", g.opts.MaxDelay, "error", err, "reason", reason)
		}
		pause(caller, g.opts.MaxDelay)
		return g.unfinished(caller, d, fmt.Errorf("%w: %w", err, reason))
	}
	g.count.deadLettered.Add(1)
	g.log.Error("message dead-lettered", "message_id", d.MessageId,
		"exchange", d.Exchange, "routing_key", d.RoutingKey, "reason", reason)
	return err
}

// deadLetter returns nil or ErrNotAcked when the message is safe elsewhere.
func (g *Guard) deadLetter(ctx context.Context, d amqp.Delivery, reason error) error {
	switch {
	case g.opts.Queues != nil:
		if err := g.opts.Queues.DeadLetter(ctx, d, reason); err != nil {
			return fmt.Errorf("dead-letter message: %w", err)
		}
		return g.ack(d)
	case g.opts.DeadLetter != nil:
		store := func() error { return g.opts.DeadLetter(ctx, d, reason) }
		if err := g.contain("Options.DeadLetter", d.MessageId, store); err != nil {
			return fmt.Errorf("dead-letter message: %w", err)
		}
		return g.ack(d)
	case g.opts.DeadLetterExchange:
		if err := d.Nack(false, false); err != nil {
			return fmt.Errorf("reject message: %w", err)
		}
		return nil
	default:
		return errors.New("Options.HandBack is set")
	}
}

// unfinished ends a delivery that is neither done nor given up. If caller was cancelled, the
// receiver stops and closes the channel. If caller has ended by a deadline, its own or
// Options.Hold, the receiver may go on: the message must not keep its place in the prefetch.
func (g *Guard) unfinished(caller context.Context, d amqp.Delivery, reason error) error {
	if errors.Is(caller.Err(), context.Canceled) {
		return g.leave(d, reason)
	}
	return g.handBack(d, reason)
}

// leave tells the broker nothing: the end of the channel returns d. Where the order matters,
// the channel is closed at once, so that no later message of it is handled.
func (g *Guard) leave(d amqp.Delivery, reason error) error {
	if g.inOrder {
		return g.handBack(d, reason)
	}
	g.count.leftUnacked.Add(1)
	return fmt.Errorf("handle message %q: %w: %w", d.MessageId, ErrLeftUnacked, reason)
}

// handBack requeues d with a nack, which unlike a reject does not bring the
// message closer to the delivery limit of a queue on RabbitMQ 4.3. If the nack
// fails the channel is closed, and the broker requeues the message by itself.
// Where the order matters, the channel is closed in any case.
func (g *Guard) handBack(d amqp.Delivery, reason error) error {
	g.count.handedBack.Add(1)
	requeue := func() error { return d.Nack(false, true) }
	if g.inOrder {
		requeue = func() error { return closeChannel(d) }
	}
	if err := requeue(); err != nil {
		reason = fmt.Errorf("%w (requeue: %w)", reason, err)
	}
	return fmt.Errorf("handle message %q: %w: %w", d.MessageId, ErrHandedBack, reason)
}
