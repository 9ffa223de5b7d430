package idempotency

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// The reasons that DeadQueue writes.
const (
	DeadFailed = "failed"  // the handler failed too often, or the message cannot be handled
	DeadTooOld = "too-old" // ErrTooOld
)

// DeadQueue returns a function for Options.DeadLetter. It publishes a message to a queue of
// broker, with the reason in the headers of a verifier's dead letter, and waits for the confirm
// for up to 30 seconds. So no message is lost on the way, as one may be on the broker's own way
// (see Options.DeadLetterExchange). bridgectl shows such messages. If the message's own headers
// leave no room for the reason, the message is published as a record (wire.DeadRecord). The queue
// must exist, and broker's login must have the right to write to the default exchange.
func DeadQueue(broker *bridge.Broker, queue string) func(ctx context.Context, d amqp.Delivery, reason error) error {
	return func(ctx context.Context, d amqp.Delivery, reason error) error {
		const patience, textLimit = 30 * time.Second, 1000
		code, text := DeadFailed, reason.Error()
		if errors.Is(reason, ErrTooOld) {
			code = DeadTooOld
		}
		letter := wire.DeadLetter(d, amqp.Table{
			wire.HeaderDeadReason: code,
			wire.HeaderDeadText:   text[:min(len(text), textLimit)],
			wire.HeaderDeadAt:     time.Now().UTC().Format(time.RFC3339),
		})
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		publish := func(letter amqp.Publishing) error {
			return broker.Publish(ctx, []bridge.Outgoing{{Target: bridge.Target{RoutingKey: queue}, Publishing: letter}})
		}
		err := publish(letter)
		if errors.Is(err, bridge.ErrInvalidMessage) || bridge.Refusal(err) != nil {
			return publish(wire.DeadRecord(letter))
		}
		return err
	}
}
