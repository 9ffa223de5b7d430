package verifier

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// ownQueues publishes carried messages and markers to the verifier's own queues.
type ownQueues struct {
	staging string
	waiting string
	publish func(context.Context, []bridge.Outgoing) error // returns after the confirms
	timeout time.Duration                                  // of a publication
	blocked func() bool                                    // reports whether nothing can be published
}

// send publishes to one of the queues. It returns nil when the broker has confirmed all.
func (q *ownQueues) send(ctx context.Context, queue string, publishings ...amqp.Publishing) error {
	if len(publishings) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	out := make([]bridge.Outgoing, len(publishings))
	for i, p := range publishings {
		out[i] = bridge.Outgoing{Target: bridge.Target{RoutingKey: queue}, Publishing: p}
	}
	return q.publish(ctx, out)
}
