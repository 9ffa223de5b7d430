package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/email"
	"github.com/twoqueue/twoqueue/cmd/email-gateway/internal/transport"
	"github.com/twoqueue/twoqueue/idempotency"
)

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

// bury puts a message into the dead queue, with the reason. If the process dies after the publish,
// the message is in both queues: it is delivered and buried once more.
func (g *gateway) bury(ctx context.Context, d amqp.Delivery, reason error) error {
	if err := idempotency.DeadQueue(g.broker, g.config.Queue+".dead", g.config.Queue)(ctx, d, reason); err != nil {
		return err
	}
	now := failed
	for _, refusal := range []error{email.ErrNotAllowed, email.ErrRefused, transport.ErrPermanent, idempotency.ErrTooOld} {
		if errors.Is(reason, refusal) {
			now = refused
		}
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
