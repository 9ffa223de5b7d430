package idempotency_test

import (
	"errors"
	"fmt"
	"log"
	"strings"
	"testing"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
)

func TestAReplyGoesToTheReplyToWithTheRequestsCorrelation(t *testing.T) {
	for want, request := range map[string]amqp.Delivery{
		"c": {ReplyTo: "replies", CorrelationId: "c", MessageId: "m"},
		"m": {ReplyTo: "replies", MessageId: "m"},
	} {
		message, err := idempotency.Reply(request, amqp.Publishing{Body: []byte("yes"), Type: "answer", CorrelationId: "x"})
		receivertest.Must(t, err)
		if message.Target() != (bridge.Target{RoutingKey: "replies"}) || message.Publishing.CorrelationId != want ||
			string(message.Publishing.Body) != "yes" || message.Publishing.Type != "answer" {
			t.Errorf("the reply is %+v", message)
		}
	}
}

// A direct reply-to is no queue: RabbitMQ delivers the reply and returns it, both.
func TestADirectReplyToIsRefused(t *testing.T) {
	_, err := idempotency.Reply(amqp.Delivery{ReplyTo: "amq.rabbitmq.reply-to.g1h2AA", MessageId: "m"}, amqp.Publishing{})
	if permanent := new(backoff.PermanentError); !errors.As(err, &permanent) || !strings.Contains(err.Error(), "name a queue") {
		t.Errorf("error %v", err)
	}
}

// A reply goes to the request's reply-to, with the request's correlation ID. Send it in the
// transaction that handles the request: see the example of the package.
func ExampleReply() {
	request := amqp.Delivery{ReplyTo: "replies to the shop", CorrelationId: "order 17"}
	reply, err := idempotency.Reply(request, amqp.Publishing{Body: []byte("paid")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Target(), "about", reply.Publishing.CorrelationId)
	// Output:
	// queue "replies to the shop" about order 17
}
