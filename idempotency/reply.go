package idempotency

import (
	"errors"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// Reply makes of p the answer to request: its target is the queue that the request
// names in its reply-to, and its correlation ID is that of the request, or the
// request's message ID if it has none. Everything else of p stays.
//
// Send it with sender.SendTx in the transaction of the handler. Then the request is
// handled and its reply sent, or neither: no crash comes between, and a request that
// comes twice is answered once. The asker handles the reply by a Guard of its own, as
// a reply may be delivered twice as every message may.
//
// A request without a reply-to is an error that no retry can help, so that the Guard
// dead-letters the request if the handler returns it. The reply-to is the asker's
// word: a verifier that has a list of allowed targets holds it to that list.
func Reply(request amqp.Delivery, p amqp.Publishing) (bridge.Message, error) {
	if request.ReplyTo == "" {
		return bridge.Message{}, backoff.Permanent(errors.New("reply: the request has no reply-to"))
	}
	p.CorrelationId = request.CorrelationId
	if p.CorrelationId == "" {
		p.CorrelationId = request.MessageId
	}
	return bridge.Message{RoutingKey: request.ReplyTo, Publishing: p}, nil
}
