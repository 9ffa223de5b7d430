package bridgectl_test

import (
	"errors"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A receiver's dead letters, and messages that the broker itself moved at the delivery limit, can
// be listed, shown, and replayed to the receiver's queue without --force.
func TestAReceiversDeadLettersAreReplayedToItsQueue(t *testing.T) {
	t.Parallel()
	url := servertest.Vhost(t)
	broker, err := bridge.Dial(t.Context(), url, nil)
	must(t, err)
	t.Cleanup(broker.Close)
	_, err = idempotency.DeclareReceiver(t.Context(), broker, "emails", nil)
	must(t, err)
	must(t, idempotency.DeadQueue(broker, "emails.dead", "emails")(t.Context(), amqp.Delivery{Exchange: "shop", RoutingKey: "order", MessageId: "m1", Body: []byte("one")}, errors.New("out of paper")))
	conn, err := amqp.Dial(url)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	must(t, err)
	// The broker moves a rejected message as it moves one at its delivery limit.
	must(t, channel.PublishWithContext(t.Context(), "", "emails", true, false, amqp.Publishing{MessageId: "m2", Body: []byte("two")}))
	take := func(queue string) (d amqp.Delivery) {
		must(t, servertest.Await(t.Context(), "a message in "+queue, func() (ok bool, err error) {
			d, ok, err = channel.Get(queue, false)
			return ok, err
		}))
		return d
	}
	must(t, take("emails").Reject(false))
	must(t, servertest.Await(t.Context(), "both are dead", func() (bool, error) {
		state, err := channel.QueueDeclarePassive("emails.dead", true, false, false, false, nil)
		return state.Messages == 2, err
	}))
	other := withEnv(t, "BRIDGE_AMQP_URL="+url, "BRIDGE_QUEUE=emails")
	list := other.must("dead", "list")
	for _, text := range []string{"m1", "failed", "out of paper", "m2", "broker"} {
		if !strings.Contains(list, text) {
			t.Errorf("dead list does not say %q:\n%s", text, list)
		}
	}
	if shown := other.must("dead", "show", "m1"); !strings.Contains(shown, "to queue emails") || !strings.Contains(shown, "shop:order") {
		t.Errorf("dead show says\n%s", shown)
	}
	other.must("dead", "replay", "--all", "--yes")
	for range 2 {
		d := take("emails")
		failed, _ := wire.Retries(d)
		restored := wire.Restored(d)
		want := amqp.Delivery{Exchange: "shop", RoutingKey: "order"}
		if d.MessageId == "m2" {
			want = amqp.Delivery{RoutingKey: "emails"}
		}
		if failed != 0 || restored.Exchange != want.Exchange || restored.RoutingKey != want.RoutingKey || len(restored.Headers) != 1 {
			t.Errorf("%s came back with %+v", d.MessageId, restored)
		}
		must(t, d.Ack(false))
	}
}
