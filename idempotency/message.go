package idempotency

import (
	"bytes"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
)

// storable returns d as it is stored, or a refusal.
func (g *Guard) storable(d amqp.Delivery) ([]byte, error) {
	message, err := wire.EncodeDelivery(d)
	if err == nil && len(message) > g.opts.MaxStored {
		err = fmt.Errorf("the message would take %d bytes to store, more than Options.MaxStored %d", len(message), g.opts.MaxStored)
	}
	if err != nil {
		return nil, &refusal{err}
	}
	return message, nil
}

// decodeMessage returns a delivery that has all of the message and nothing of its
// way: Redelivered is false, and to ack it is an error.
func decodeMessage(stored []byte) (amqp.Delivery, error) {
	d, err := wire.ReadDelivery(bytes.Clone(stored)) // a handler may write into the body
	if err != nil {
		return amqp.Delivery{}, fmt.Errorf("decode message: %w", err)
	}
	return d, nil
}
