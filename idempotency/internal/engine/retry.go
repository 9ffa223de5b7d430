package engine

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
)

// Retried returns how many attempts at d have failed, and how often it was in a retry queue. Only a
// receiver with retry queues trusts the headers with these numbers. A message always has one
// attempt left, whatever its headers contain.
func (e *Engine) Retried(d amqp.Delivery) (failed, retries int) {
	if e.Opts.Queues == nil {
		return 0, 0
	}
	failed, retries = wire.Retries(d)
	return min(failed, e.Opts.Attempts-1), retries
}

// retryQueue returns the retry queue in which a message waits for its next attempt. It returns
// false if the message must be retried in place: the message is not the cause of the failure, so
// all messages would circulate, or its order matters.
func (e *Engine) retryQueue(ctx context.Context, err error, counted bool, failed, retries int) (RetryQueue, bool) {
	later := new(laterError)
	asked := errors.As(err, &later)
	session := SessionOf(ctx)
	if e.Opts.Queues == nil || e.InPlace || session != nil && session.Ordered || !counted && !asked {
		return RetryQueue{}, false
	}
	queues := e.Opts.Queues.retries
	if len(queues) == 0 {
		return RetryQueue{}, false
	}
	longest := len(queues) - 1
	switch {
	case counted:
		return queues[min(failed-1, longest)], true
	case later.after <= 0:
		return queues[min(retries, longest)], true
	}
	for _, queue := range queues {
		if queue.Delay >= later.after {
			return queue, true
		}
	}
	return queues[longest], true
}

// putAside publishes a copy of d to a retry queue. Without an error the broker has confirmed the
// copy: then d may be acked. If the process dies in between, both d and the copy are handled, and
// the second of them is a duplicate; if both fail for good, both are dead-lettered. After
// bridge.ErrUnconfirmed the broker may have the copy.
func (e *Engine) putAside(ctx context.Context, queue RetryQueue, d amqp.Delivery, failed, retries int) error {
	copied, err := wire.Retry(d, failed, retries)
	if err == nil {
		err = publish(ctx, e.Opts.Queues.broker, queue.Name, copied)
	}
	if err != nil {
		e.Opts.Queues.complain(queue.Name, d.MessageId, err)
	}
	return err
}
