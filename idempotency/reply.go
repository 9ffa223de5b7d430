package idempotency

import (
	"errors"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// Reply turns p into the reply to request. Its target is the queue in the request's reply-to. Its
// correlation ID is the request's correlation ID, or the request's message ID if it has none.
// Everything else in p stays.
//
// Send it with sender.SendTx in the transaction of the handler. Then the request is handled and its
// reply sent, or neither, and a request that comes twice gets one reply. The requester needs its
// own Deduplicator, since a reply may be delivered twice.
//
// If the request has no reply-to, or a direct reply-to (amq.rabbitmq.reply-to), the error is
// permanent: the Deduplicator dead-letters the request if the handler returns it. A direct reply-to is
// no queue, and the broker does not say whether the reply arrived. The requester chooses the reply-to;
// a verifier forwards only to the targets on its allow-list.
func Reply(request amqp.Delivery, p amqp.Publishing) (bridge.Message, error) {
	if request.ReplyTo == "" {
		return bridge.Message{}, backoff.Permanent(errors.New("reply: the request has no reply-to"))
	}
	to := bridge.Message{RoutingKey: request.ReplyTo}
	if to.Target().DirectReply() {
		return bridge.Message{}, backoff.Permanent(errors.New("reply: the request's reply-to is amq.rabbitmq.reply-to, which is no queue; the asker must name a queue of its own"))
	}
	p.CorrelationId = request.CorrelationId
	if p.CorrelationId == "" {
		p.CorrelationId = request.MessageId
	}
	to.Publishing = p
	return to, nil
}
