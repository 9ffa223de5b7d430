package watermillbridge

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
)

// HeaderUUID is the header of a message's UUID, as in package watermill-amqp.
const HeaderUUID = "_watermill_message_uuid"

// publishing returns msg as the receiver shall see it.
func publishing(msg *message.Message) (amqp.Publishing, error) {
	headers := make(amqp.Table, len(msg.Metadata)+1)
	for key, value := range msg.Metadata {
		if lost(key) {
			return amqp.Publishing{}, fmt.Errorf("%w: metadata %q: the bridge, the broker or this package uses a header of this name", bridge.ErrInvalidMessage, key)
		}
		headers[key] = value
	}
	headers[HeaderUUID] = msg.UUID
	return amqp.Publishing{Headers: headers, Body: msg.Payload}, nil
}

// received returns d as a message. A message of another kind of sender has its message ID as the UUID.
func received(d amqp.Delivery) *message.Message {
	id, ok := d.Headers[HeaderUUID].(string)
	if !ok {
		id = d.MessageId
	}
	msg := message.NewMessage(id, bytes.Clone(d.Body)) // the handler may change it, and d may be kept
	for key, value := range d.Headers {
		if text, ok := value.(string); ok && !lost(key) {
			msg.Metadata[key] = text
		}
	}
	return msg
}

// keyOf is the default of Deduplicator.Key. Package watermill-amqp sends a UUID and no message ID.
func keyOf(d amqp.Delivery) (string, error) {
	if id, ok := d.Headers[HeaderUUID].(string); ok && d.MessageId == "" {
		return id, nil
	}
	return d.MessageId, nil
}

// lost reports whether metadata with this key would not arrive as a header: this package or the
// broker uses the name, or the verifier removes the header.
func lost(key string) bool {
	return slices.Contains([]string{HeaderUUID, "CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count"}, key) ||
		slices.ContainsFunc([]string{"x-bridge-", "x-first-death-", "x-last-death-"}, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}
