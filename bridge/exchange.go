package bridge

import (
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// CheckExchange returns why name cannot be a Topology's Exchange; nil if it can, or is empty.
func CheckExchange(name string) error {
	switch {
	case len(name) > 255:
		return errors.New("has more than 255 bytes")
	case strings.HasPrefix(name, "amq."):
		return errors.New("begins with amq., which RabbitMQ reserves; choose another name")
	}
	return nil
}

// BoundQueues returns the names of the queues that senders publish to: the staging queue and the
// ordered queues. With an Exchange they are bound to it.
func (t Topology) BoundQueues() []string { return append([]string{t.Queue}, t.OrderedQueues()...) }

// DeclareExchange makes the Exchange and its bindings, or checks them; without an Exchange it does
// nothing. The queues must exist. If the exchange has another type or durability, the error names
// the difference. If the login lacks a right, the error wraps ErrUnchecked, unless the broker
// reports that the exchange is missing.
func (t Topology) DeclareExchange(conn *Connection) error {
	if t.Exchange == "" {
		return nil
	}
	const durable, autoDelete, internal, noWait = true, false, false, false
	err := conn.OnChannel(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(t.Exchange, amqp.ExchangeDirect, durable, autoDelete, internal, noWait, nil)
	})
	if refusedWith(err, amqp.AccessRefused) {
		return t.exchangeExists(conn, err)
	}
	if refusedWith(err, amqp.PreconditionFailed) {
		return fmt.Errorf("exchange %q exists, but not as a durable direct exchange: %w; delete it, or name another one", t.Exchange, err)
	}
	if err != nil {
		return exchangeError(t.Exchange, err)
	}
	for _, queue := range t.BoundQueues() {
		err := conn.OnChannel(func(ch *amqp.Channel) error {
			return ch.QueueBind(queue, queue, t.Exchange, noWait, nil)
		})
		if refusedWith(err, amqp.AccessRefused) {
			return &uncheckedBinding{t.Exchange, queue}
		}
		if err != nil {
			return exchangeError(t.Exchange, fmt.Errorf("bind queue %q: %w", queue, err))
		}
	}
	return nil
}

// An uncheckedBinding is ErrUnchecked for a binding that may exist.
type uncheckedBinding struct{ exchange, queue string }

func (e *uncheckedBinding) Error() string {
	return fmt.Sprintf("exchange %q: its bindings are unchecked: the login may not bind queue %q, which needs the rights to write to the queue and to read the exchange", e.exchange, e.queue)
}

func (*uncheckedBinding) Is(target error) bool { return target == ErrUnchecked }

// exchangeExists checks the exchange for a login without the right to configure it.
func (t Topology) exchangeExists(conn *Connection, refusal error) error {
	const durable, autoDelete, internal, noWait = true, false, false, false
	err := conn.OnChannel(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(t.Exchange, amqp.ExchangeDirect, durable, autoDelete, internal, noWait, nil)
	})
	switch {
	case err == nil:
		return fmt.Errorf("exchange %q: %w", t.Exchange, ErrUnchecked)
	case refusedWith(err, amqp.AccessRefused): // RabbitMQ 4.3 answers only a login with some right to the exchange
		return fmt.Errorf("exchange %q: %w, and may not check that the exchange exists", t.Exchange, ErrUnchecked)
	case refusedWith(err, amqp.NotFound):
		return fmt.Errorf("exchange %q: is missing, and the login has no right to declare it: %w", t.Exchange, refusal)
	}
	return exchangeError(t.Exchange, err)
}

func exchangeError(name string, err error) error {
	if !errors.As(err, new(*amqp.Error)) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("exchange %q: %w", name, err)
}

// refusedWith reports whether err is a refusal by the broker with this code.
func refusedWith(err error, code int) bool {
	var refusal *amqp.Error
	return errors.As(err, &refusal) && refusal.Code == code
}
