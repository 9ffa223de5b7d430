package wire

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/limits"
)

// deliveryFormat is the first byte of an encoded delivery.
const deliveryFormat = 1

// EncodeDelivery returns a delivered message as bytes, as an inbox keeps it, without the properties
// of one delivery (tag, channel, redelivered). It fails for messages that no broker delivers, for
// example with a header of a type that AMQP does not have. An int among the headers becomes an
// int32, as amqp091-go sends it.
func EncodeDelivery(d amqp.Delivery) ([]byte, error) {
	p := Republished(d)
	p.DeliveryMode, p.Expiration, p.UserId = d.DeliveryMode, d.Expiration, d.UserId
	if err := limits.Publishing(d.Exchange, d.RoutingKey, p); err != nil {
		return nil, fmt.Errorf("encode delivery: %w", err)
	}
	b := make([]byte, 0, 11+len(d.Exchange)+len(d.RoutingKey)+limits.HeaderBytes(p)+len(p.Body))
	b = appendShort(append(b, deliveryFormat), d.Exchange)
	return appendRecord(appendShort(b, d.RoutingKey), p), nil
}

// ReadDelivery reverses EncodeDelivery. The delivery cannot be acked. Its body is shared with
// stored. The error wraps ErrMalformed.
func ReadDelivery(stored []byte) (amqp.Delivery, error) {
	r := decoder{b: stored}
	format, exchange, routingKey := r.uint8(), r.short(), r.short()
	if len(stored) == 0 || format != deliveryFormat {
		return amqp.Delivery{}, fmt.Errorf("%w: stored delivery: format %d is not known", bridge.ErrMalformed, format)
	}
	d, err := onlyRecord(r.b, limits.MaxDepth)
	if err == nil && r.failed {
		err = errors.New("its exchange or routing key is cut off")
	}
	if err != nil {
		return amqp.Delivery{}, fmt.Errorf("%w: stored delivery: %w", bridge.ErrMalformed, err)
	}
	d.Exchange, d.RoutingKey = exchange, routingKey
	return d, nil
}
