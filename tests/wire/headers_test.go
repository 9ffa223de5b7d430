package wire_test

import (
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// The reason for two limits of the wire format. The broker takes such headers; the library
// writes them, and does not read them.
func TestHeadersBeyondTheLimitsEndTheConnectionOfTheirConsumer(t *testing.T) {
	t.Parallel()
	deep := any("bottom")
	for range 34 {
		deep = []any{deep}
	}
	for name, value := range map[string]any{
		"too many elements": slices.Repeat([]any{""}, 8193),
		"too deep":          deep,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vhost := servertest.Vhost(t)
			declare(t, vhost, "q", nil)
			ch := channel(t, vhost)
			if err := ch.Confirm(false); err != nil {
				t.Fatal(err)
			}
			confirm, err := ch.PublishWithDeferredConfirm("", "q", true, false, amqp.Publishing{Headers: amqp.Table{"header": value}})
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := confirm.WaitContext(within(t, patience)); err != nil || !ok {
				t.Fatalf("the broker does not take it: %t, %v", ok, err)
			}
			conn, err := amqp.Dial(vhost)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			closed := conn.NotifyClose(make(chan *amqp.Error, 1))
			consumer, err := conn.Channel()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := consumer.Consume("q", "", true, false, false, false, nil); err != nil {
				t.Logf("consume: %v", err) // it may have ended by then
			}
			select {
			case reason := <-closed:
				if reason == nil || !strings.Contains(reason.Reason, "invalid field") { // the library's word
					t.Errorf("closed for %v, must be for an invalid field", reason)
				}
			case <-within(t, patience).Done():
				t.Error("the connection stays")
			}
		})
	}
}
