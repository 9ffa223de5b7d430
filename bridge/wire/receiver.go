package wire

import (
	"maps"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
)

// HeaderDeadQueue names the queue from which a receiver took its dead letter.
const HeaderDeadQueue = "x-bridge-dead-queue"

// ReceiverLetter is DeadLetter for a message that a receiver of a queue gives up. It keeps the
// whole message: CC, BCC, user-id, exchange and routing key travel in headers of the bridge. If the
// broker or the client refuses the letter for its headers, publish its DeadRecord instead.
func ReceiverLetter(d amqp.Delivery, queue string, why amqp.Table) amqp.Publishing {
	d.Headers = parked(d)
	delete(d.Headers, HeaderAttempts)
	delete(d.Headers, HeaderRetries)
	d.Headers[HeaderDeadQueue] = queue
	return DeadLetter(d, why)
}

// ReceiverOf returns the queue of the receiver that wrote a dead letter, or from which the broker
// itself moved it. d must come from OpenDead. ok is false for a letter of a verifier.
func ReceiverOf(d amqp.Delivery) (queue string, ok bool) {
	if _, staged := d.Headers[HeaderLedger]; staged { // a verifier removes this header before it forwards
		return "", false
	}
	if queue, ok = d.Headers[HeaderDeadQueue].(string); ok {
		return queue, true
	}
	queue, ok = lastDeath(d)["queue"].(string)
	return queue, ok
}

// lastDeath returns the broker's note on how a message came to a dead queue, nil without one.
func lastDeath(d amqp.Delivery) amqp.Table {
	deaths, _ := d.Headers["x-death"].([]any)
	if len(deaths) == 0 {
		return nil
	}
	last, _ := deaths[0].(amqp.Table) // the latest comes first
	return last
}

// ReplayToReceiver returns a dead letter, for which ReceiverOf is true, as it is published to the
// queue of its receiver, through the default exchange. The receiver's attempts begin anew, and the
// receiver sees the message as it was first delivered (Restored).
func ReplayToReceiver(d amqp.Delivery) amqp.Publishing {
	headers := make(amqp.Table, len(d.Headers)+2)
	maps.Copy(headers, d.Headers)
	if _, known := headers[HeaderExchange].(string); !known { // the broker moved it
		death := lastDeath(d)
		exchange, _ := death["exchange"].(string)
		keys, _ := death["routing-keys"].([]any)
		if len(keys) > 0 {
			if key, ok := keys[0].(string); ok {
				headers[HeaderExchange], headers[HeaderRoutingKey] = exchange, key
			}
		}
	}
	maps.DeleteFunc(headers, func(name string, _ any) bool {
		return slices.Contains(addedByBroker, name) || slices.Contains(deadHeaders, name) || name == HeaderDeadQueue || name == HeaderRetries
	})
	rename(headers, "CC", HeaderCC)
	rename(headers, "BCC", HeaderBCC)
	headers[HeaderAttempts] = int64(0)
	d.Headers = headers
	return Republished(d)
}
