package parts

import (
	"bytes"
	"strings"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// Message returns the message of an order. The ID determines its content.
func Message(id uuid.UUID, to bridge.Target) bridge.Message {
	return bridge.Message{ID: id, Exchange: to.Exchange, RoutingKey: to.RoutingKey, Publishing: amqp.Publishing{
		ContentType: "text/plain",
		Type:        "order placed",
		Headers:     amqp.Table{"order": id.String()},
		Body:        body(id),
	}}
}

// body returns a body of 36 bytes to 9 KiB.
func body(id uuid.UUID) []byte {
	return []byte(strings.Repeat(id.String()+" ", 1+int(id[15])))
}

// intact reports whether a delivery is its order's message without a change. It ignores the
// counters that the receiver's queue adds.
func intact(d amqp.Delivery) bool {
	id, err := uuid.Parse(d.MessageId)
	delete(d.Headers, "x-delivery-count")
	delete(d.Headers, "x-acquired-count")
	return err == nil && bytes.Equal(d.Body, body(id)) && d.ContentType == "text/plain" && d.Type == "order placed" &&
		d.Headers["order"] == id.String() && len(d.Headers) == 1 && d.DeliveryMode == amqp.Persistent
}
