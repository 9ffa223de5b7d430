package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/email"
	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/transport"
	"github.com/twoqueue/twoqueue/idempotency"
)

func (g *gateway) deadQueue() string { return g.config.Queue + ".dead" }

// queues are a receiver's queues without retry queues: the process that has noted an e-mail's
// attempt retries the e-mail. The delivery limit sends an e-mail that kills its gateway each time to
// the dead queue. It suffices for ten days without the mail server, at one hand-back per EMAIL_HOLD.
var queues = idempotency.ReceiverOptions{RetryDelays: []time.Duration{}, DeliveryLimit: 1000}

// declare declares the queues that are missing. It uses an existing queue with other arguments as it
// is; bridgectl doctor --receiver checks the arguments.
func (g *gateway) declare(ctx context.Context) error {
	for _, queue := range idempotency.ReceiverQueues(g.config.Queue, &queues) {
		err := bridge.DeclareQueues(ctx, g.broker, []bridge.Queue{queue})
		switch {
		case errors.As(err, new(*bridge.QueueMismatch)):
			g.log.Warn("queue is used as it is", "queue", queue.Name, "error", err)
		case err != nil:
			return fmt.Errorf("declare queues: %w", err)
		}
	}
	return nil
}

// reasons are the codes in the dead queue. The code of any other error is "failed".
var reasons = []struct {
	err  error
	code string
	now  status
}{
	{email.ErrNotAllowed, "not-allowed", refused},
	{email.ErrRefused, "malformed", refused},
	{transport.ErrPermanent, "refused", refused},
	{idempotency.ErrTooOld, "too-old", refused},
}

// confirmPatience bounds a publish to the dead queue.
const confirmPatience = 30 * time.Second

// bury puts a message into the dead queue, with the reason. If the process dies after the publish,
// the message is in both queues: it is delivered and buried once more.
func (g *gateway) bury(ctx context.Context, d amqp.Delivery, reason error) error {
	code, now := "failed", failed
	for _, r := range reasons {
		if errors.Is(reason, r.err) {
			code, now = r.code, r.now
			break
		}
	}
	if err := g.publishDead(ctx, d.MessageId, dead(d, code, reason)); err != nil {
		return err
	}
	run := 0
	if a, ok := ctx.Value(attemptKey{}).(*attempt); ok {
		a.count(now)
		run = a.failed
	}
	if id, err := uuid.Parse(d.MessageId); err == nil && id.String() == d.MessageId {
		g.write(ctx, d.MessageId, now, func(ctx context.Context) error {
			return g.statuses.giveUp(ctx, d.MessageId, run, now, reason)
		})
	}
	return nil
}

// publishDead puts a letter into the dead queue. If the message's own headers leave no room for the
// reason, it publishes the message as a record in the body of another one: otherwise the message
// would be redelivered for ever.
func (g *gateway) publishDead(ctx context.Context, id string, letter amqp.Publishing) error {
	err := g.publish(ctx, letter)
	if _, enclosed := letter.Headers[wire.HeaderDeadRecord]; enclosed || !unpublishable(err) {
		return err
	}
	g.log.Error("broker refuses the dead letter with the message's headers; it is published as a record", "message_id", id, "error", err)
	if err = g.publish(ctx, wire.DeadRecord(letter)); unpublishable(err) {
		g.log.Error("broker refuses the dead letter in both forms; the message stays in its queue", "message_id", id,
			"bytes", len(letter.Body), "queue", g.config.Queue, "error", err)
	}
	return err
}

func (g *gateway) publish(ctx context.Context, letter amqp.Publishing) error {
	ctx, cancel := context.WithTimeout(ctx, confirmPatience)
	defer cancel()
	return g.broker.Publish(ctx, []bridge.Outgoing{{Target: bridge.Target{RoutingKey: g.deadQueue()}, Publishing: letter}})
}

// unpublishable reports whether the client or the broker refuses the letter itself.
func unpublishable(err error) bool {
	return errors.Is(err, bridge.ErrInvalidMessage) || bridge.Refusal(err) != nil
}

// dead returns the message as it was delivered, with the reason in its headers.
func dead(d amqp.Delivery, code string, reason error) amqp.Publishing {
	return wire.DeadLetter(d, amqp.Table{
		wire.HeaderDeadReason: code,
		wire.HeaderDeadText:   text(reason),
		wire.HeaderDeadAt:     timestamp().Format(time.RFC3339),
	})
}
