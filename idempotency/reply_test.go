package idempotency_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
)

func TestAReplyGoesToTheReplyToWithTheRequestsCorrelation(t *testing.T) {
	for want, request := range map[string]amqp.Delivery{
		"c": {ReplyTo: "replies", CorrelationId: "c", MessageId: "m"},
		"m": {ReplyTo: "replies", MessageId: "m"},
	} {
		message, err := idempotency.Reply(request, amqp.Publishing{Body: []byte("yes"), Type: "answer", CorrelationId: "x"})
		must(t, err)
		if message.Target() != (bridge.Target{RoutingKey: "replies"}) || message.Publishing.CorrelationId != want ||
			string(message.Publishing.Body) != "yes" || message.Publishing.Type != "answer" {
			t.Errorf("the reply is %+v", message)
		}
	}
}
