package idempotency

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
)

type attemptKey struct{}

type attemptNumber struct {
	number int
	last   bool
}

func withAttempt(ctx context.Context, number int, last bool) context.Context {
	return context.WithValue(ctx, attemptKey{}, attemptNumber{number, last})
}

// Attempt tells a handler which attempt at its message this is, from 1 on, and whether it is the
// last one: if it fails, the message is dead-lettered. ctx is the context that the handler was
// given. Attempts that do not count (see 'Who is to blame' in the package comment) do not raise the
// number. In a function for Options.DeadLetter it is the number of attempts that have failed.
// With any other context it is 0.
func Attempt(ctx context.Context) (number int, last bool) {
	a, _ := ctx.Value(attemptKey{}).(attemptNumber)
	return a.number, a.last
}

// retried returns how many attempts at d have failed, and how often it was in a retry queue. Only
// a receiver with retry queues believes the headers that say so. A message always has one attempt
// left, whatever its headers say.
func (g *Guard) retried(d amqp.Delivery) (failed, retries int) {
	if g.opts.Queues == nil {
		return 0, 0
	}
	failed, retries = wire.Retries(d)
	return min(failed, g.opts.Attempts-1), retries
}

// retryQueue returns the retry queue in which a message waits for its next attempt. It is false if
// the message must be retried in place: the failure is not its own, as all messages would go
// round then, or its order counts.
func (g *Guard) retryQueue(ctx context.Context, err error, counted bool, failed, retries int) (retryQueue, bool) {
	later := new(laterError)
	asked := errors.As(err, &later)
	session := sessionOf(ctx)
	if g.opts.Queues == nil || g.inPlace || session != nil && session.ordered || !counted && !asked {
		return retryQueue{}, false
	}
	queues := g.opts.Queues.retries
	if len(queues) == 0 {
		return retryQueue{}, false
	}
	longest := len(queues) - 1
	switch {
	case counted:
		return queues[min(failed-1, longest)], true
	case later.after <= 0:
		return queues[min(retries, longest)], true
	}
	for _, queue := range queues {
		if queue.delay >= later.after {
			return queue, true
		}
	}
	return queues[longest], true
}

// putAside publishes a copy of d to a retry queue. Without an error the broker has confirmed the
// copy: then d may be acked. If the process dies in between, both d and the copy are handled, and
// the second of them is a duplicate; if both fail for good, both are dead-lettered. After
// bridge.ErrUnconfirmed the broker may have the copy.
func (g *Guard) putAside(ctx context.Context, queue retryQueue, d amqp.Delivery, failed, retries int) error {
	copied, err := wire.Retry(d, failed, retries)
	if err == nil {
		err = g.opts.Queues.publish(ctx, queue.name, copied)
	}
	if err != nil {
		g.opts.Queues.complain(queue.name, d.MessageId, err)
	}
	return err
}
