package idempotency

import (
	"context"
	"iter"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Until yields deliveries until ctx ends or their channel is closed. Close the AMQP channel then:
// the broker returns its unacked messages to the queue.
//
//	for d := range idempotency.Until(ctx, deliveries) {
//
// A loop over deliveries alone does not end with ctx: it waits until the channel is closed.
func Until(ctx context.Context, deliveries <-chan amqp.Delivery) iter.Seq[amqp.Delivery] {
	return func(yield func(amqp.Delivery) bool) {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
				return
			case d, open := <-deliveries:
				if !open || !yield(d) {
					return
				}
			}
		}
	}
}
