package wire_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// valved dials a vhost, which gets the queue q, through a valve, and has it connected.
func valved(t *testing.T, vhost string) (*servertest.Valve, *bridge.Broker) {
	t.Helper()
	declare(t, vhost, "q", nil)
	valve, address := servertest.Through(t, vhost)
	broker := dial(t, address, nil)
	publishes(t, broker, "q")
	return valve, broker
}

func TestPublishersWaitForTheConnectionUpToTheirDeadline(t *testing.T) {
	t.Parallel()
	valve, broker := valved(t, servertest.Vhost(t))

	valve.HoldReplies() // so that no new connection comes about
	valve.Cut()
	// What hits the dying connection is unconfirmed; after that there is none.
	servertest.Eventually(t, "there is no connection", func() bool {
		err := broker.Publish(within(t, time.Second), outgoing("q", 1))
		if err == nil {
			t.Fatal("published through a cut")
		}
		return !errors.Is(err, bridge.ErrUnconfirmed)
	})
	fails(t, broker, outgoing("q", 1), time.Second, bridge.ErrUnavailable)

	ctx := within(t, patience)
	results := make(chan error)
	for range 50 {
		go func() { results <- broker.Publish(ctx, outgoing("q", 10)) }()
	}
	select {
	case err := <-results:
		t.Fatalf("a publisher did not wait: %v", err)
	case <-within(t, 2*time.Second).Done():
	}
	valve.Release()
	for range 50 {
		if err := <-results; err != nil {
			t.Errorf("after the reconnect: %v", err)
		}
	}
}

// Whoever meets a connection that has just died waits for the next one: with time
// left, a cut costs only what was in flight.
func TestACutCostsOnlyWhatWasInFlight(t *testing.T) {
	t.Parallel()
	valve, broker := valved(t, servertest.Vhost(t))
	ctx := within(t, patience)
	var (
		running sync.WaitGroup
		done    = make(chan struct{})
	)
	for range 50 {
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
	for range 10 {
		valve.Cut()
		servertest.Eventually(t, "there is another connection", func() bool { return broker.Publish(ctx, outgoing("q", 1)) == nil })
	}
	close(done)
	running.Wait()
}

func TestAHalfOpenConnectionCostsNobodyMoreThanTheDeadline(t *testing.T) {
	t.Parallel()
	valve, broker := valved(t, servertest.Vhost(t))

	t.Run("no replies", func(t *testing.T) {
		valve.HoldReplies()
		messages := outgoing("q", 10)
		err := fails(t, broker, messages, time.Second, bridge.ErrUnconfirmed)
		blames(t, err, messages[0])
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("does not tell of the deadline: %v", err)
		}
		// A caller that is cancelled is not to try again.
		ctx, cancel := context.WithCancelCause(within(t, patience))
		gone := errors.New("the shop shuts down")
		time.AfterFunc(100*time.Millisecond, func() { cancel(gone) })
		if err := broker.Publish(ctx, messages); !errors.Is(err, gone) || bridge.Retryable(err) {
			t.Errorf("cancelled, retryable %t: %v", bridge.Retryable(err), err)
		}
		valve.Release()
		publishes(t, broker, "q")
	})
	t.Run("no requests", func(t *testing.T) {
		valve.HoldRequests()
		messages := outgoing("q", 30) // more than all buffers take
		for i := range messages {
			messages[i].Body = make([]byte, 1<<20)
		}
		err := fails(t, broker, messages, time.Second, context.DeadlineExceeded)
		blames(t, err, messages[len(messages)-1-slices.IndexFunc(reversed(messages), func(m bridge.Outgoing) bool {
			return strings.Contains(err.Error(), m.MessageId)
		})])
		fails(t, broker, outgoing("q", 1), time.Second, context.DeadlineExceeded) // behind them
		valve.Release()
		publishes(t, broker, "q")
	})
}

func reversed[T any](s []T) []T {
	s = slices.Clone(s)
	slices.Reverse(s)
	return s
}

// The first message is confirmed, the second is stuck half-way.
func TestTheUnconfirmedMessageIsBlamedNotAConfirmedOne(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	declare(t, vhost, "q", nil)
	const handshake, openChannel, message = 3, 2, 3 // in frames
	const before = handshake + openChannel + message
	_, through := servertest.NewGate(t, vhost, func(f servertest.Frame) bool { return !f.Reply && f.N == before })
	broker := dial(t, through, &bridge.BrokerOptions{Channels: 1})
	messages := outgoing("q", 2)
	err := fails(t, broker, messages, 5*time.Second, bridge.ErrUnconfirmed)
	blames(t, err, messages[1])
	if n := depth(t, vhost, "q"); n != 1 {
		t.Errorf("%d messages arrived", n)
	}
}

// The connection dies right after its handshake; what opens a channel then gets
// no answer.
func TestAConnectionThatDiesAfterTheHandshakeHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	const handshake = 3 // frames: start, tune, open
	_, through := servertest.NewGate(t, servertest.Vhost(t), func(f servertest.Frame) bool { return f.Reply && f.N == handshake })
	broker := dial(t, through, nil)
	start := time.Now()
	fails(t, broker, outgoing("q", 1), time.Second, bridge.ErrUnavailable)
	if err := (bridge.Topology{Queue: "q"}).Declare(within(t, time.Second), broker); !errors.Is(err, bridge.ErrUnavailable) {
		t.Errorf("declare: %v", err)
	}
	broker.Close()
	if took := time.Since(start); took > patience {
		t.Errorf("took %v", took)
	}
}
