package wire_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// In a cluster a channel may nack for as long as a node is away, and a new channel does not. So
// nacks make the publisher renew its channel, again and again, while goroutines publish. None of
// them may notice.
func TestNacksRenewTheChannelAndFailNoOtherPublish(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	declare(t, vhost, "here", nil)
	declare(t, vhost, "full", amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	const enough = 3
	var channels atomic.Int64
	renewed := make(chan struct{})
	openChannel := servertest.Method{20, 10}
	_, through := servertest.NewGate(t, vhost, func(f servertest.Frame) bool {
		if !f.Reply && f.Method == openChannel && channels.Add(1) == enough {
			close(renewed)
		}
		return false
	})
	p := publisher(t, connect(t, dial(t, through, nil)), 64)

	ctx := within(t, patience)
	var taken atomic.Int64
	var publishing, reported sync.WaitGroup
	for g := range 16 {
		publishing.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-renewed:
					return
				case <-ctx.Done():
					return
				default:
				}
				queue, want := "here", error(nil)
				if (g+i)%4 == 0 {
					queue, want = "full", bridge.ErrNacked
				}
				reported.Add(1)
				err := p.Publish(ctx, bridge.Target{RoutingKey: queue}, amqp.Publishing{MessageId: fmt.Sprint(g, "-", i)}, func(err error) {
					defer reported.Done()
					// The last messages on a channel that is being closed may stay unconfirmed.
					if !errors.Is(err, want) && (want == nil || !errors.Is(err, bridge.ErrUnconfirmed)) {
						t.Errorf("to %s: %v", queue, err)
					}
					if err == nil {
						taken.Add(1)
					}
				})
				if err != nil {
					t.Errorf("publish: %v", err)
					reported.Done()
				}
				time.Sleep(time.Millisecond) // load, not a flood
			}
		})
	}
	publishing.Wait()
	await(t, "all reports", &reported)
	if n := channels.Load(); n < enough {
		t.Errorf("it has used %d channels", n)
	}
	if n := depth(t, vhost, "here"); int64(n) != taken.Load() {
		t.Errorf("%d messages in the queue, %d were confirmed", n, taken.Load())
	}
	if err := p.Err(); err != nil {
		t.Error(err)
	}
}
