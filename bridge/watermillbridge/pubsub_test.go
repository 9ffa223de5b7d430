package watermillbridge_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/bridge/watermillbridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestMain(m *testing.M) { servertest.Main(m) }

// A world is a database with a ledger, an inbox and a table, a broker, and a verifier that runs.
type world struct {
	*stage.Stage
	t        *testing.T
	inbox    driver.Inbox
	sender   *sender.Sender
	verifier *stage.Running
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, Stage: stage.On(t, stage.Postgres, servertest.Vhost(t), bridge.Topology{Queue: "staging", OrderedShards: 2})}
	if err := migrate.Inbox(t.Context(), w.DB, migrate.PostgreSQL); err != nil {
		t.Fatal(err)
	}
	if _, err := w.DB.ExecContext(t.Context(), `CREATE TABLE invoices (body text UNIQUE DEFERRABLE INITIALLY DEFERRED)`); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.inbox, err = postgres.OpenInbox(t.Context(), w.DB); err != nil {
		t.Fatal(err)
	}
	w.sender = w.NewSender(sender.Options{})
	t.Cleanup(func() { _ = w.sender.Flush(context.Background()) })
	w.verifier = w.Verify(verifier.Options{})
	w.DB.SetMaxIdleConns(50)
	return w
}

// subscriber makes a Subscriber that tries again at once. Its owner closes it.
func (w *world) subscriber(opts watermillbridge.SubscriberOptions) *watermillbridge.Subscriber {
	w.t.Helper()
	opts.Deduplicator.MinDelay, opts.Deduplicator.MaxDelay, opts.Deduplicator.Logger = time.Millisecond, 10*time.Millisecond, stage.Logger(w.t)
	if opts.Consumer.Drain == 0 {
		opts.Consumer.Drain = time.Second
	}
	opts.Consumer.Logger, opts.Receiver.Logger = opts.Deduplicator.Logger, opts.Deduplicator.Logger
	sub, err := watermillbridge.NewSubscriber(w.Broker, w.DB, w.inbox, "billing", &opts)
	if err != nil {
		w.t.Fatal(err)
	}
	return sub
}

// inTransactions publishes as a program does: each call in a transaction of its own.
type inTransactions struct {
	*watermillbridge.Publisher
	*world
}

func (p inTransactions) Publish(topic string, messages ...*message.Message) error {
	return p.sender.InTx(context.Background(), p.DB, nil, func(tx *sender.Tx) error {
		copies := make([]*message.Message, len(messages))
		for i, msg := range messages {
			copies[i] = msg.Copy()
			copies[i].SetContext(watermillbridge.WithTx(msg.Context(), tx))
		}
		return p.Publisher.Publish(topic, copies...)
	})
}

// The tests that Watermill has for every Pub/Sub, in their short form. With ExactlyOnceDelivery they
// count each copy that is delivered, and leave out the closing of subscribers.
func TestWatermillsOwnTests(t *testing.T) {
	for name, kind := range map[string]struct {
		features   tests.Features
		publisher  watermillbridge.PublisherOptions
		subscriber watermillbridge.SubscriberOptions
	}{
		"without order keys": {features: tests.Features{Persistent: true}},
		"several workers": {
			features:   tests.Features{Persistent: true},
			subscriber: watermillbridge.SubscriberOptions{Consumer: idempotency.ConsumerOptions{Workers: 5}, Receiver: idempotency.ReceiverOptions{RetryDelays: []time.Duration{time.Millisecond}}},
		},
		"with order keys": {
			features:   tests.Features{Persistent: true, GuaranteedOrder: true, ExactlyOnceDelivery: true},
			publisher:  watermillbridge.PublisherOptions{OrderKey: func(topic string, msg *message.Message) string { return topic + string(msg.Payload) }},
			subscriber: watermillbridge.SubscriberOptions{Receiver: idempotency.ReceiverOptions{SingleActiveConsumer: true}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			kind.features.ForceShort = true
			kind.subscriber.Deduplicator.Attempts = 1000 // they nack for long
			tests.TestPubSub(t, kind.features, func(*testing.T) (message.Publisher, message.Subscriber) {
				sub := w.subscriber(kind.subscriber)
				t.Cleanup(func() { _ = sub.Close() }) // they do not close all
				return inTransactions{watermillbridge.NewPublisher(&kind.publisher), w}, sub
			}, nil)
		})
	}
}
