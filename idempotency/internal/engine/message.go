package engine

import (
	"bytes"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
)

// DecodeMessage returns the delivery of a stored message without the state of its channel:
// Redelivered is false, and acking it is an error.
func DecodeMessage(stored []byte) (amqp.Delivery, error) {
	d, err := wire.ReadDelivery(bytes.Clone(stored)) // a handler may write into the body
	if err != nil {
		return amqp.Delivery{}, fmt.Errorf("decode message: %w", err)
	}
	return d, nil
}
