// Package idempotency_test tests the promises of package idempotency and its subpackages on a
// real RabbitMQ and real databases.
package idempotency_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pending"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestMain(m *testing.M) {
	servertest.Play(childVariable, child.play)
	servertest.Main(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually calls ask until it returns true.
func eventually(t *testing.T, what string, ask func() (bool, error)) {
	t.Helper()
	must(t, servertest.Await(t.Context(), what, ask))
}

func newDedup(t *testing.T, inbox driver.Inbox, opts idempotency.Options) *idempotency.Deduplicator {
	t.Helper()
	opts.Logger = slog.New(slog.NewTextHandler(testLog{t}, nil))
	opts.HandBack = !opts.DeadLetterExchange
	dedup, err := idempotency.New(inbox, "shop", &opts)
	must(t, err)
	return dedup
}

// newPending returns a pending.Effects that hands back, unless opts chooses a dead-letter exchange.
func newPending(t *testing.T, inbox driver.Inbox, opts pending.Options) *pending.Effects {
	t.Helper()
	opts.Logger = slog.New(slog.NewTextHandler(testLog{t}, nil))
	opts.HandBack = !opts.DeadLetterExchange
	effects, err := pending.New(inbox, "shop", &opts)
	must(t, err)
	return effects
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	return len(p), nil
}

// queue is a queue in a vhost of its own, with a connection to it.
type queue struct {
	t    *testing.T
	url  string
	name string
	*amqp.Channel
	consumers []*amqp.Connection
}

const dead = "dead"

var (
	quorum        = amqp.Table{"x-queue-type": "quorum"}
	classic       = amqp.Table{"x-queue-type": "classic"}
	quorumToDead  = amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
	classicToDead = amqp.Table{"x-queue-type": "classic", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
	limitless     = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
)

// newQueue declares a queue with these arguments, and the dead queue.
func newQueue(t *testing.T, arguments amqp.Table) *queue {
	t.Helper()
	return newQueueOn(t, servertest.Vhost(t), arguments)
}

func newQueueOn(t *testing.T, url string, arguments amqp.Table) *queue {
	t.Helper()
	q := &queue{t: t, url: url, name: fmt.Sprintf("orders-%d", time.Now().UnixNano())}
	_, q.Channel = q.dial()
	_, err := q.QueueDeclare(q.name, true, false, false, false, arguments)
	must(t, err)
	_, err = q.QueueDeclare(dead, true, false, false, false, nil)
	must(t, err)
	must(t, q.Confirm(false))
	return q
}

// dial opens another connection, with one channel.
func (q *queue) dial() (*amqp.Connection, *amqp.Channel) {
	q.t.Helper()
	conn, err := amqp.Dial(q.url)
	must(q.t, err)
	q.t.Cleanup(func() { _ = conn.Close() }) // some tests close it before
	channel, err := conn.Channel()
	must(q.t, err)
	return conn, channel
}

// publish publishes messages with these IDs to the queue. The ID is also the body.
func (q *queue) publish(ids ...string) {
	q.t.Helper()
	for _, id := range ids {
		q.send(amqp.Publishing{MessageId: id, DeliveryMode: amqp.Persistent, Body: []byte(id)})
	}
}

// send publishes a message to the queue.
func (q *queue) send(p amqp.Publishing) {
	q.t.Helper()
	confirm, err := q.PublishWithDeferredConfirm("", q.name, true, false, p)
	must(q.t, err)
	if acked, err := confirm.WaitContext(q.t.Context()); err != nil || !acked {
		q.t.Fatalf("message %s not confirmed: %v", p.MessageId, err)
	}
}

// consume starts a consumer on a connection of its own.
func (q *queue) consume() <-chan amqp.Delivery {
	q.t.Helper()
	conn, channel := q.dial()
	q.consumers = append(q.consumers, conn)
	must(q.t, channel.Qos(20, 0, false))
	deliveries, err := channel.Consume(q.name, "", false, false, false, false, nil)
	must(q.t, err)
	return deliveries
}

// next waits for a delivery.
func next(t *testing.T, deliveries <-chan amqp.Delivery) amqp.Delivery {
	t.Helper()
	d := servertest.Next(t, "a delivery", deliveries)
	if d.Acknowledger == nil {
		t.Fatal("the channel was closed")
	}
	return d
}

// waitNoConsumers waits until the broker has removed all consumers. Then their unacked messages are
// in the queue again.
func (q *queue) waitNoConsumers() {
	q.t.Helper()
	eventually(q.t, "the consumers are gone", func() (bool, error) {
		state, err := q.QueueDeclarePassive(q.name, true, false, false, false, nil)
		return state.Consumers == 0, err
	})
}

// stopConsumers closes the consumers' connections, and waits until the broker has removed the
// consumers.
func (q *queue) stopConsumers() {
	q.t.Helper()
	for _, conn := range q.consumers {
		if err := conn.Close(); err != nil && !errors.Is(err, amqp.ErrClosed) {
			q.t.Error(err)
		}
	}
	q.consumers = nil
	q.waitNoConsumers()
}

// redeliver hands the queue's messages to handle.
func (q *queue) redeliver(handle func(d amqp.Delivery) error) {
	q.t.Helper()
	for {
		d, ok, err := q.Get(q.name, false)
		must(q.t, err)
		if !ok {
			return
		}
		must(q.t, handle(d))
	}
}

// wantEmpty checks that the queue has no message, ready or unacked.
func (q *queue) wantEmpty() {
	q.t.Helper()
	q.stopConsumers()
	if d, ok, err := q.Get(q.name, true); err != nil || ok {
		q.t.Errorf("the queue holds message %q (err %v)", d.MessageId, err)
	}
}

// nextDead waits for a message in the dead queue and takes it.
func (q *queue) nextDead() (d amqp.Delivery) {
	q.t.Helper()
	eventually(q.t, "a message is dead", func() (ok bool, err error) {
		d, ok, err = q.Get(dead, true)
		return ok, err
	})
	return d
}
