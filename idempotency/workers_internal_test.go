package idempotency

import (
	"log/slog"
	"runtime"
	"slices"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

func TestAMessageWhoseKeyPanicsHasNoKey(t *testing.T) {
	w := newWorkers(&ConsumerOptions{Workers: 2, Key: func(d amqp.Delivery) string {
		return string(d.Body[:2]) // panics without a body
	}}, 1, nil, slog.New(slog.DiscardHandler))
	if key := w.keyOf(amqp.Delivery{Body: []byte("ab")}); key != "ab" {
		t.Errorf("the key is %q", key)
	}
	if key := w.keyOf(amqp.Delivery{}); key != "" {
		t.Errorf("the key is %q after a panic", key)
	}
}

// A copy of a message waits for the handler of the previous one, which may hang.
func TestCopiesOfAMessageWithoutAKeyWaitForEachOther(t *testing.T) {
	w := newWorkers(&ConsumerOptions{Workers: 2, Key: func(amqp.Delivery) string { return "" }}, 1, nil, nil)
	if key := w.keyOf(amqp.Delivery{MessageId: "m1"}); key != "m1" {
		t.Errorf("the key is %q", key)
	}
}

// A message of another key does not overtake a message that waits for its key.
func TestOneWorkerKeepsTheOrderOfAllKeys(t *testing.T) {
	w := newWorkers(&ConsumerOptions{Workers: 1, Key: func(d amqp.Delivery) string { return string(d.Body) }}, 1, nil, nil)
	session := &consumerSession{Session: engine.Session{Stopping: t.Context()}}
	added, ended := make(chan struct{}), make(chan string, 3)
	jobs := newSchedule(1, 1, func(running []*job) {
		<-added
		ended <- running[0].delivery.MessageId
	})
	for _, d := range []amqp.Delivery{{MessageId: "m1", Body: []byte("a")}, {MessageId: "m2", Body: []byte("a")}, {MessageId: "m3", Body: []byte("b")}} {
		jobs.add(&job{session: session, delivery: d, key: w.keyOf(d), release: func() {}})
	}
	close(added)
	var order []string
	for range 3 {
		order = append(order, <-ended)
	}
	if want := []string{"m1", "m2", "m3"}; !slices.Equal(order, want) {
		t.Errorf("handled in the order %q", order)
	}
}

// A handler that ends its goroutine (runtime.Goexit) leaves its worker to the waiting messages.
func TestAHandlerThatEndsItsGoroutineDelaysNoOtherMessage(t *testing.T) {
	session := &consumerSession{Session: engine.Session{Stopping: t.Context()}}
	added, handled := make(chan struct{}), make(chan string, 2)
	jobs := newSchedule(1, 1, func(running []*job) {
		<-added
		if running[0].delivery.MessageId == "m1" {
			runtime.Goexit()
		}
		handled <- running[0].delivery.MessageId
	})
	for _, id := range []string{"m1", "m2", "m3"} {
		jobs.add(&job{session: session, delivery: amqp.Delivery{MessageId: id}, release: func() {}})
	}
	close(added)
	for _, want := range []string{"m2", "m3"} {
		if id := <-handled; id != want {
			t.Errorf("handled %s, want %s", id, want)
		}
	}
}
