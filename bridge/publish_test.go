package bridge

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func carrying(body []byte) []Outgoing {
	return []Outgoing{{Target{RoutingKey: "q"}, amqp.Publishing{MessageId: "m", Body: body}}}
}

// publish publishes in a goroutine, and returns the channel of the result.
func publish(b *Broker, body string) <-chan error {
	result := make(chan error, 1)
	go func() { result <- b.Publish(context.Background(), carrying([]byte(body))) }()
	return result
}

func awaitResult(t *testing.T, what string, result <-chan error) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(peerPatience):
		t.Fatalf("%s: no result", what)
		return nil
	}
}

// A broker that never confirms must not keep the body of a message whose caller has gone.
func TestABodyIsGarbageWhenItsCallerHasGone(t *testing.T) {
	peer := newScriptedPeer(t)
	b := peer.broker(t, BrokerOptions{})
	ctx, leave := context.WithCancel(t.Context())
	result, freed := make(chan error, 1), make(chan struct{})
	go func() {
		body := make([]byte, 4096)
		runtime.AddCleanup(&body[0], func(freed chan struct{}) { close(freed) }, freed)
		result <- b.Publish(ctx, carrying(body))
	}()
	message := peer.next()
	leave()
	if err := awaitResult(t, "publish", result); !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("error %v", err)
	}
	// The peer keeps the connection alive; the connection's end would free the body.
	for deadline := time.Now().Add(peerPatience); ; {
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

// A refused message ends its own channel only: messages over another channel go on.
func TestARefusedMessageEndsNoConnection(t *testing.T) {
	peer := newScriptedPeer(t)
	b := peer.broker(t, BrokerOptions{Channels: 2})
	good := publish(b, "good")
	waiting := peer.next()
	poison := publish(b, "poison")
	refused := peer.next()
	if waiting.channel == refused.channel {
		t.Fatal("both travel over one channel")
	}
	refused.refuse()
	if err := awaitResult(t, "the refused one", poison); Refusal(err) == nil || !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("the refused one: %v", err)
	}
	waiting.confirm()
	if err := awaitResult(t, "the one of another channel", good); err != nil {
		t.Errorf("the one of another channel: %v", err)
	}
	const more = 4 // two over each channel
	for range more {
		next := publish(b, "next")
		peer.next().confirm()
		if err := awaitResult(t, "the next one", next); err != nil {
			t.Errorf("after a refusal: %v", err)
		}
	}
	if n := peer.dials.Load(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

// With one channel, none is left after the refusal.
func TestAConnectionThatIsLostBehindARefusalIsMadeAnew(t *testing.T) {
	peer := newScriptedPeer(t)
	b := peer.broker(t, BrokerOptions{Channels: 1}) // a second channel's messages would be lost with the connection
	poison := publish(b, "poison")
	refused := peer.next()
	refused.refuse()
	_ = refused.conn.Close()
	if err := awaitResult(t, "the refused one", poison); !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("the refused one: %v", err)
	}
	next := publish(b, "next")
	peer.next().confirm()
	if err := awaitResult(t, "the next one", next); err != nil {
		t.Errorf("over the new connection: %v", err)
	}
	if n := peer.dials.Load(); n != 2 {
		t.Errorf("%d connections were made", n)
	}
}
