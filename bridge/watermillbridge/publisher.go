package watermillbridge

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/twoqueue/twoqueue/bridge"
)

// ErrNoTx: the context of a message has no transaction.
var ErrNoTx = errors.New("the message's context has no transaction: call SetContext with WithTx on the message, or make it with the context of the message that is handled")

// PublisherOptions are the options of NewPublisher. Nil and the zero value of each field mean their
// defaults.
type PublisherOptions struct {
	// Target returns where the messages of a topic go. The verifiers must allow it. Default: to the
	// queue of the topic's name, by the default exchange.
	Target func(topic string) bridge.Target

	// OrderKey returns the order key of a message ('In order' in package sender), or "" for none. The
	// sender needs ordered queues, and the receivers' queue a single active consumer. Default: none.
	OrderKey func(topic string, msg *message.Message) string

	// Edit changes a message before it is sent: its content type, its priority, NotBefore. Default:
	// the message has headers and a body only.
	Edit func(topic string, m *bridge.Message)
}

// A Publisher is a message.Publisher that sends each message in the transaction of its context
// (WithTx). The message goes out if and only if that transaction commits. A Publisher has no state.
type Publisher struct{ opts PublisherOptions }

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher returns a Publisher. opts may be nil.
func NewPublisher(opts *PublisherOptions) *Publisher {
	p := new(Publisher)
	if opts != nil {
		p.opts = *opts
	}
	if p.opts.Target == nil {
		p.opts.Target = func(topic string) bridge.Target { return bridge.Target{RoutingKey: topic} }
	}
	return p
}

// Publish sends messages in the transactions of their contexts, and returns before these commit. If a
// context has no transaction, the error is ErrNoTx. Other errors are errors of the transaction's Send,
// such as bridge.ErrInvalidMessage for a message that can never be sent. Then the transaction must roll
// back, which InTx and a Subscriber do in any case. After the function of InTx has returned, or the
// message of a Subscriber was acked, the error wraps sql.ErrTxDone.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		if err := p.publish(topic, msg); err != nil {
			return fmt.Errorf("publish message %q to topic %q: %w", msg.UUID, topic, err)
		}
	}
	return nil
}

func (p *Publisher) publish(topic string, msg *message.Message) error {
	tx, ok := msg.Context().Value(txKey{}).(Tx)
	if !ok {
		return ErrNoTx
	}
	content, err := publishing(msg)
	if err != nil {
		_, _ = tx.Send(bridge.Message{}) // fails too, so the transaction cannot commit without msg
		return err
	}
	target := p.opts.Target(topic)
	m := bridge.Message{Exchange: target.Exchange, RoutingKey: target.RoutingKey, Publishing: content}
	if p.opts.OrderKey != nil {
		m.OrderKey = p.opts.OrderKey(topic, msg)
	}
	if p.opts.Edit != nil {
		p.opts.Edit(topic, &m)
	}
	_, err = tx.Send(m)
	return err
}

// Close does nothing: the transactions send, and Sender.Flush waits for carried messages.
func (p *Publisher) Close() error { return nil }
