package bridge

import (
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/google/uuid"
)

// A Message is the message that the receiver will see, and its target. A sender (wire.Encode)
// refuses a message with ErrInvalidMessage, before anything has happened, if it has
//   - no target, or a name or short property of more than 255 bytes
//   - headers and properties of more than 64 KiB together, more than 1000 headers, or headers that
//     AMQP or amqp091-go cannot carry or that begin with x-bridge-
//   - a CC or BCC that is no list of strings
//   - a MessageId that differs from ID
//   - an expiration that is no number of milliseconds or is more than ten years
//   - the reply-to amq.rabbitmq.reply-to, or a target of that name (Target.DirectReply)
//   - an order key that is too long, contains a NUL, or comes with a priority
//   - a NotBefore that comes with an order key or is too late
type Message struct {
	// ID names the message for ever: it is the row in the ledger, the message-id at the
	// receiver and the receiver's idempotency key. If it is zero, the sender makes a UUIDv7.
	//
	// An ID that the caller gives must always name the same content. After a rolled-back attempt the
	// broker may still hold that attempt's copy, and the verifier may forward it once the ID is
	// committed, even with other content.
	ID uuid.UUID

	// Exchange and RoutingKey are the target. The empty Exchange is the default
	// exchange, where RoutingKey is the name of a queue. At most 255 bytes each.
	Exchange   string
	RoutingKey string

	// OrderKey, if it is not empty, keeps the message in order with all others of the same key
	// ('In order, per key' in the package's comment). It has at most 255 bytes and no NUL. It
	// needs ordered queues, see Topology.OrderedShards. A message with a key must have no
	// priority, which would change the order. Each attempt to send it needs a new ID. The receiver
	// does not get the key: put it into the body or a header of your own too.
	OrderKey string

	// NotBefore, if it is not zero, delays the message: a verifier stages it when the database's
	// clock has reached this time ('Delayed messages' in the comment of package sender). It must be
	// before the year 10000, and the message must have no order key.
	NotBefore time.Time

	// Publishing is the message itself. MessageId must be empty or the text of ID. DeliveryMode
	// is ignored: a message is always persistent, since a confirm of a transient message
	// promises nothing. Headers that start with "x-bridge-" are reserved.
	Publishing amqp.Publishing
}

// Target returns the message's target.
func (m Message) Target() Target { return Target{m.Exchange, m.RoutingKey} }

// A Target is an exchange and a routing key.
type Target struct {
	Exchange   string
	RoutingKey string
}

// DirectReply reports whether the target is a direct reply-to: amq.rabbitmq.reply-to with a suffix
// names a channel of the requester, not a queue. No message is sent there. RabbitMQ delivers a
// mandatory message to such a channel and returns it all the same (measured on 3.10). For a
// message that is not mandatory, the broker does not report whether the requester was still there.
// Neither is a safe delivery (rule 4 in the package's comment).
func (t Target) DirectReply() bool {
	return t.Exchange == "" && strings.HasPrefix(t.RoutingKey, "amq.rabbitmq.reply-to")
}

// String returns the target for logs: `queue "q"` or `exchange "x" key "k"`.
func (t Target) String() string {
	if t.Exchange == "" {
		return "queue " + strconv.Quote(t.RoutingKey)
	}
	return "exchange " + strconv.Quote(t.Exchange) + " key " + strconv.Quote(t.RoutingKey)
}
