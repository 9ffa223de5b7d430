package wire

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/internal/limits"
)

// HeaderRetries counts, beside HeaderAttempts, how often a receiver has published a message to one
// of its retry queues.
const HeaderRetries = "x-bridge-retries"

// Retry returns a delivered message as its receiver publishes it to a retry queue, with the number
// of failed attempts and of retries. Properties and headers that the broker would act on there
// (expiration, user-id, CC, BCC) travel in headers of the bridge, and so do the exchange and the
// routing key. Headers added by the broker are left out: a queue drops an expired message whose
// x-death names that queue. Restored reverses Retry.
//
// The error wraps bridge.ErrInvalidMessage: the message cannot be read, or its headers leave no
// room for these and for the broker's own.
func Retry(d amqp.Delivery, failed, retries int) (amqp.Publishing, error) {
	if _, record := d.Headers[HeaderDeadRecord]; record {
		return amqp.Publishing{}, fmt.Errorf("%w: it is the record of a message", bridge.ErrInvalidMessage)
	}
	d.Headers = parked(d)
	d.Headers[HeaderAttempts], d.Headers[HeaderRetries] = int64(failed), int64(retries)
	copied := Republished(d)
	if size := limits.HeaderBytes(copied); size > maxProperties {
		return amqp.Publishing{}, fmt.Errorf("%w: its headers count as %d bytes: at most %d", bridge.ErrInvalidMessage, size, maxProperties)
	}
	return copied, nil
}

// parked returns the headers of d for a queue other than its own, with everything in them that such
// a queue would act on or replace.
func parked(d amqp.Delivery) amqp.Table {
	d = Restored(d)
	headers := make(amqp.Table, len(d.Headers)+6)
	maps.Copy(headers, d.Headers)
	maps.DeleteFunc(headers, func(name string, _ any) bool { return slices.Contains(addedByBroker, name) })
	headers[HeaderExchange], headers[HeaderRoutingKey] = d.Exchange, d.RoutingKey
	for name, value := range map[string]string{HeaderExpiration: d.Expiration, HeaderUserID: d.UserId} {
		delete(headers, name)
		if value != "" {
			headers[name] = value
		}
	}
	rename(headers, "CC", HeaderCC)
	rename(headers, "BCC", HeaderBCC)
	return headers
}

// Restored returns a message that has come back from a retry queue, or was replayed from a dead
// queue, as it was first delivered: exchange, routing key, expiration, CC and BCC are its own
// again, and the headers of the retry are removed. Its user-id is empty, since RabbitMQ has not
// checked the header that held it. HeaderAttempts and HeaderRetries stay. Restored returns any
// other message unchanged.
func Restored(d amqp.Delivery) amqp.Delivery {
	exchange, first := d.Headers[HeaderExchange].(string)
	routingKey, second := d.Headers[HeaderRoutingKey].(string)
	_, third := d.Headers[HeaderAttempts]
	if !first || !second || !third || d.Exchange != "" { // only the default exchange brings it back
		return d
	}
	headers := make(amqp.Table, len(d.Headers))
	for name, value := range d.Headers {
		switch name {
		case HeaderExchange, HeaderRoutingKey:
		case HeaderExpiration:
			d.Expiration, _ = value.(string)
		case HeaderUserID: // the broker has not checked this header, so it proves no user
		case HeaderCC:
			headers["CC"] = value
		case HeaderBCC:
			headers["BCC"] = value
		default:
			if !slices.Contains(addedByBroker, name) {
				headers[name] = value
			}
		}
	}
	d.Exchange, d.RoutingKey, d.Headers = exchange, routingKey, headers
	return d
}

// Retries returns, from the headers of a message, how many attempts have failed and how often the
// message was in a retry queue. A value that is no integer, or is negative, counts as 0, and one
// above the largest int32 as that.
func Retries(d amqp.Delivery) (failed, retries int) {
	return count(d.Headers[HeaderAttempts]), count(d.Headers[HeaderRetries])
}

func count(value any) int {
	var n int64
	switch value.(type) {
	case int8, int16, int32, int64, uint8, uint16, uint32:
		n, _ = strconv.ParseInt(fmt.Sprint(value), 10, 64)
	}
	return int(min(max(n, 0), math.MaxInt32))
}
