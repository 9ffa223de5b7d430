// Package wire_test tests package bridge on a real RabbitMQ: the escapes of the wire format, the
// topology, and confirms.
package wire_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

func TestMain(m *testing.M) { servertest.Main(m) }

// patience bounds every wait.
const patience = stage.Patience

func dial(t *testing.T, url string, opts *bridge.BrokerOptions) *bridge.Broker {
	t.Helper()
	if opts == nil {
		opts = new(bridge.BrokerOptions)
	}
	opts.Logger = stage.Logger(t)
	broker, err := bridge.Dial(t.Context(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	return broker
}

func connect(t *testing.T, broker *bridge.Broker) *bridge.Connection {
	t.Helper()
	conn, err := broker.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// channel opens a channel on a connection of its own.
func channel(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // a test may have ended the broker
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func declare(t *testing.T, url, queue string, args amqp.Table) {
	t.Helper()
	if _, err := channel(t, url).QueueDeclare(queue, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
}

// depth returns the number of ready messages in a queue.
func depth(t *testing.T, url, queue string) int {
	t.Helper()
	q, err := channel(t, url).QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}

// outgoing returns persistent messages for a queue.
func outgoing(queue string, n int) []bridge.Outgoing {
	messages := make([]bridge.Outgoing, n)
	for i := range messages {
		messages[i] = bridge.Outgoing{
			Target:     bridge.Target{RoutingKey: queue},
			Publishing: amqp.Publishing{MessageId: uuid.NewString(), DeliveryMode: amqp.Persistent, Body: []byte("body")},
		}
	}
	return messages
}

// within returns a context with a deadline.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// publishes checks that the broker confirms a message.
func publishes(t *testing.T, broker *bridge.Broker, queue string) {
	t.Helper()
	if err := broker.Publish(within(t, patience), outgoing(queue, 1)); err != nil {
		t.Fatalf("publish: %v", err)
	}
}

// returns returns fn's result; fn must not hang.
func returns(t *testing.T, what string, fn func() error) error {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- fn() }()
	return servertest.Next(t, what+" returns", result)
}

// await waits until a group is done.
func await(t *testing.T, what string, group *sync.WaitGroup) {
	t.Helper()
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	servertest.Next(t, what, done)
}

// fails checks that Publish fails with the error want. Package bridge's tests check that it keeps
// its deadline exactly.
func fails(t *testing.T, broker *bridge.Broker, messages []bridge.Outgoing, deadline time.Duration, want error) error {
	t.Helper()
	ctx := within(t, deadline)
	err := returns(t, "Publish", func() error { return broker.Publish(ctx, messages) })
	if !errors.Is(err, want) {
		t.Fatalf("publish: %v, want %v", err, want)
	}
	return err
}

func contains(t *testing.T, err error, text string) {
	t.Helper()
	if !strings.Contains(err.Error(), text) {
		t.Errorf("error %q does not contain %q", err, text)
	}
}
