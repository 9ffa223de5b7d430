package bridgectl_test

import (
	"maps"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/idempotency"
)

// With RabbitMQ's default dead-lettering a message is lost if the dead queue does not accept it.
func TestTheDoctorFindsReceiversWhoseDeadMessagesAreLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.tool()
	b.must("topology", "declare")
	safe := amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": 1000000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	}
	but := func(name string, value any) amqp.Table {
		args := maps.Clone(safe)
		args[name] = value
		if value == nil {
			delete(args, name)
		}
		return args
	}
	w.queue("dead", nil)
	receivers := map[string]struct {
		args  amqp.Table // nil: the queue is missing
		level inspect.Level
		words string
	}{
		"safe":                {safe, inspect.OK, "at least once"},
		"plain":               {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1000000}, inspect.Error, "no dead-letter exchange"},
		"classic":             {amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}, inspect.Warning, "without a confirm"},
		"at-most-once":        {but("x-dead-letter-strategy", nil), inspect.Error, "x-dead-letter-strategy is not at-least-once"},
		"drop-head":           {but("x-overflow", nil), inspect.Error, "x-overflow is not reject-publish"},
		"no-key":              {but("x-dead-letter-routing-key", nil), inspect.Warning, "no dead-letter routing key"},
		"no-dead-queue":       {but("x-dead-letter-routing-key", "nowhere"), inspect.Error, "dead queue nowhere is missing"},
		"no-limit":            {but("x-delivery-limit", nil), inspect.Warning, "from RabbitMQ 4 on it is 20"},
		"a-small-limit":       {but("x-delivery-limit", 20), inspect.Warning, "the delivery limit is 20"},
		"by-a-policy":         {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1000000}, inspect.OK, "at least once"},
		"by-a-policy-off":     {safe, inspect.Error, `overflow is drop-head by policy "overflow"`},
		"by-a-policy-limited": {safe, inspect.Warning, "the delivery limit is 20"},
		"absent":              {nil, inspect.Error, "missing"},
	}
	w.policy("dead letters", "^by-a-policy$", map[string]any{"dead-letter-exchange": "", "dead-letter-routing-key": "dead",
		"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"})
	w.policy("overflow", "^by-a-policy-off$", map[string]any{"overflow": "drop-head"})
	w.policy("limit", "^by-a-policy-limited$", map[string]any{"delivery-limit": 20})
	args := []string{"broker"}
	for name, c := range receivers {
		if c.args != nil {
			w.queue(name, c.args)
		}
		args = append(args, "--receiver", name)
	}
	d, _ := b.until(func(d diagnosis, _ int) bool {
		for name, c := range receivers {
			if !d.has("receiver's queue "+name, c.level, c.words) {
				return false
			}
		}
		return true
	}, args...)
	for name := range receivers {
		if found := d.of("receiver's queue " + name); len(found) != 1 {
			t.Errorf("%s: %+v", name, found)
		}
	}
	d, _ = w.tool("BRIDGE_MANAGEMENT_URL=").examine("broker", "--receiver", "safe")
	d.expect(t, "receiver's queue safe", inspect.Unknown, "AMQP does not report")
}

func TestTheDoctorLooksAtTheRetryAndDeadQueuesOfAReceiver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := idempotency.DeclareReceiver(t.Context(), w.broker(), "emails", nil)
	must(t, err)
	b := w.tool()
	expect := func(level inspect.Level, words string) {
		t.Helper()
		if d, _ := b.until(func(d diagnosis, _ int) bool { return d.has("retry queues of emails", level, words) }, "broker", "--receiver", "emails"); len(d.of("receiver's queue emails")) != 1 {
			t.Errorf("%+v", d)
		}
	}
	expect(inspect.OK, "at least once")
	channel := w.channel()
	_, err = channel.QueueDelete("emails.retry.5s", false, false, false)
	must(t, err)
	expect(inspect.Warning, "emails.retry.5s missing")
	args := idempotency.ReceiverQueues("emails", nil)[3].Arguments
	args["x-message-ttl"] = 50
	w.queue("emails.retry.5s", args)
	expect(inspect.Error, "x-message-ttl is 50")
	must(t, channel.Publish("", "emails.dead", false, false, amqp.Publishing{}))
	b.until(func(d diagnosis, _ int) bool {
		return d.has("dead messages of emails", inspect.Warning, "1 message is ready in emails.dead")
	}, "broker", "--receiver", "emails")
}
