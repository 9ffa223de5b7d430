package wire_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// In a cluster a channel can nack for as long as a node is away; a new one does not.
// So nacks renew the channel, again and again, under the feet of those that publish,
// and none of them may notice.
func TestNacksRenewTheChannelAndNobodyNotices(t *testing.T) {
	t.Parallel()
	vhost := servertest.Vhost(t)
	declare(t, vhost, "here", nil)
	declare(t, vhost, "full", amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	p := publisher(t, connect(t, dial(t, vhost, nil)), 64)

	const renewals = 3
	channels := make(map[string]bool)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		for len(channels) <= renewals {
			ctx, cancel := context.WithTimeout(t.Context(), patience) // each takes seconds, or a minute
			out, err := servertest.RabbitMQ(t).Ctl(ctx, "-q", "list_channels", "--no-table-headers", "vhost", "pid", "confirm")
			cancel()
			if err != nil {
				t.Error(err)
				return
			}
			for _, name := range confirming(out, vhost) {
				channels[name] = true
			}
		}
	}()

	var taken atomic.Int64
	var publishing, reported sync.WaitGroup
	for g := range 16 {
		publishing.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-renewed:
					return
				default:
				}
				queue, want := "here", error(nil)
				if (g+i)%4 == 0 {
					queue, want = "full", bridge.ErrNacked
				}
				reported.Add(1)
				err := p.Publish(t.Context(), bridge.Target{RoutingKey: queue}, amqp.Publishing{MessageId: fmt.Sprint(g, "-", i)}, func(err error) {
					defer reported.Done()
					// The last ones on a channel that is to be closed may stay without a word.
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
	reported.Wait()
	if len(channels) <= renewals {
		t.Errorf("it has used %d channels: %v", len(channels), channels)
	}
	if n := depth(t, vhost, "here"); int64(n) != taken.Load() {
		t.Errorf("%d messages in the queue, %d were confirmed", n, taken.Load())
	}
	if err := p.Err(); err != nil {
		t.Error(err)
	}
}

// confirming are the channels in confirm mode of a virtual host.
func confirming(list, vhostURL string) (out []string) {
	for _, line := range lines(list) {
		var vhost, pid, confirm string
		if n, _ := fmt.Sscan(line, &vhost, &pid, &confirm); n == 3 && confirm == "true" && hasVhost(vhostURL, vhost) {
			out = append(out, pid)
		}
	}
	return out
}

func lines(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }

func hasVhost(address, vhost string) bool { return strings.HasSuffix(address, "/"+vhost) }
