package idempotency

import (
	"log/slog"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestAMessageWhoseKeyPanicsHasNoKey(t *testing.T) {
	c := &Consumer{log: slog.New(slog.DiscardHandler), opts: ConsumerOptions{Key: func(d amqp.Delivery) string {
		return string(d.Body[:2]) // panics without a body
	}}}
	if key := c.key(amqp.Delivery{Body: []byte("ab")}); key != "ab" {
		t.Errorf("the key is %q", key)
	}
	if key := c.key(amqp.Delivery{}); key != "" {
		t.Errorf("the key is %q after a panic", key)
	}
}

// A copy of a message waits for the handler of the one before, which may hang.
func TestCopiesOfAMessageWithoutAKeyWaitForEachOther(t *testing.T) {
	c := &Consumer{opts: ConsumerOptions{Workers: 2, Key: func(amqp.Delivery) string { return "" }}}
	if key := c.key(amqp.Delivery{MessageId: "m1"}); key != "m1" {
		t.Errorf("the key is %q", key)
	}
}
