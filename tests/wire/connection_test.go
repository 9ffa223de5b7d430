package wire_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// valved declares the queue q in a vhost, and connects to the vhost through a valve.
func valved(t *testing.T, vhost string) (*servertest.Valve, *bridge.Broker) {
	t.Helper()
	declare(t, vhost, "q", nil)
	valve, address := servertest.Through(t, vhost)
	broker := dial(t, address, nil)
	publishes(t, broker, "q")
	return valve, broker
}

// away cuts the connection, and prevents a new one until the valve is released.
func away(t *testing.T, valve *servertest.Valve, broker *bridge.Broker) {
	t.Helper()
	valve.HoldReplies()
	valve.Cut()
	// A message on the dying connection is unconfirmed. After that there is no connection.
	servertest.Eventually(t, "there is no connection", func() bool {
		err := broker.Publish(within(t, 100*time.Millisecond), outgoing("q", 1))
		if err == nil {
			t.Fatal("published through a cut")
		}
		return !errors.Is(err, bridge.ErrUnconfirmed)
	})
	fails(t, broker, outgoing("q", 1), 100*time.Millisecond, bridge.ErrUnavailable)
}

func TestPublishersWaitForTheConnection(t *testing.T) {
	t.Parallel()
	valve, broker := valved(t, servertest.Vhost(t))
	away(t, valve, broker)
	ctx := within(t, patience)
	const publishers = 50
	results := make(chan error, publishers)
	for range publishers {
		go func() { results <- broker.Publish(ctx, outgoing("q", 10)) }()
	}
	fails(t, broker, outgoing("q", 1), 100*time.Millisecond, bridge.ErrUnavailable) // while they wait
	valve.Release()
	for range publishers {
		if err := servertest.Next(t, "a publisher returns", results); err != nil {
			t.Errorf("after the reconnect: %v", err)
		}
	}
}

// A publisher that meets a dead connection waits for the next one: if there is time left, a cut
// costs only the messages in flight.
func TestACutCostsOnlyTheMessagesInFlight(t *testing.T) {
	t.Parallel()
	valve, broker := valved(t, servertest.Vhost(t))
	ctx := within(t, patience)
	var (
		running sync.WaitGroup
		done    = make(chan struct{})
	)
	for range 20 {
		running.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := broker.Publish(ctx, outgoing("q", 1)); err != nil && !errors.Is(err, bridge.ErrUnconfirmed) {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 5 {
		valve.Cut()
		servertest.Eventually(t, "there is another connection", func() bool { return broker.Publish(ctx, outgoing("q", 1)) == nil })
	}
	close(done)
	running.Wait()
}

// The opening of a channel then gets no answer.
func TestAConnectionThatFallsSilentAfterTheHandshakeHoldsNoCallUp(t *testing.T) {
	t.Parallel()
	const handshake = 3 // frames: start, tune, open
	_, through := servertest.NewGate(t, servertest.Vhost(t), func(f servertest.Frame) bool { return f.Reply && f.N == handshake })
	broker := dial(t, through, nil)
	fails(t, broker, outgoing("q", 1), 100*time.Millisecond, bridge.ErrUnavailable)
	ctx := within(t, 100*time.Millisecond)
	if err := returns(t, "Declare", func() error { return bridge.Topology{Queue: "q"}.Declare(ctx, broker) }); !errors.Is(err, bridge.ErrUnavailable) {
		t.Errorf("declare: %v", err)
	}
	_ = returns(t, "Close", func() error { broker.Close(); return nil })
}
