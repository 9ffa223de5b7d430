package bridge

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func outgoing(body []byte) []Outgoing {
	return []Outgoing{{Target{RoutingKey: "q"}, amqp.Publishing{MessageId: "m", Body: body}}}
}

// publish publishes in a goroutine, and returns where the result will be.
func publish(b *Broker, body string) <-chan error {
	result := make(chan error, 1)
	go func() { result <- b.Publish(context.Background(), outgoing([]byte(body))) }()
	return result
}

func awaitResult(t *testing.T, what string, result <-chan error) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(patience):
		t.Fatalf("%s: no result", what)
		return nil
	}
}

// A broker that never confirms must not make us hold what nobody waits for.
func TestABodyIsGarbageWhenItsCallerHasGone(t *testing.T) {
	peer := newScriptedPeer(t)
	b := peer.broker(BrokerOptions{})
	ctx, leave := context.WithCancel(t.Context())
	result, freed := make(chan error, 1), make(chan struct{})
	go func() {
		body := make([]byte, 4096)
		runtime.AddCleanup(&body[0], func(freed chan struct{}) { close(freed) }, freed)
		result <- b.Publish(ctx, outgoing(body))
	}()
	message := peer.next()
	leave()
	if err := awaitResult(t, "publish", result); !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("error %v", err)
	}
	// The peer keeps the connection alive, whose end would free it.
	for deadline := time.Now().Add(patience); ; {
		runtime.GC()
		select {
		case <-freed:
			message.confirm()
			return
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("the body is still held")
		}
	}
}
