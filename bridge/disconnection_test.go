package bridge

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// An outage is logged when it begins and when it ends, and rarely in between.
func TestAMissingConnectionIsLoggedOncePerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := newScriptedPeer(t)
		b := peer.broker(t, BrokerOptions{})
		var log bytes.Buffer // read between attempts
		b.outage.logger = slog.New(slog.NewTextHandler(&log, nil))
		var away atomic.Bool
		var tried, lasted int
		dial := b.dial
		b.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if away.Load() {
				tried++
				return nil, errors.New("connection refused")
			}
			return dial(ctx, network, address)
		}
		for range 2 { // the second outage is logged like the first
			result := publish(b, "m")
			m := peer.next()
			m.confirm()
			if err := <-result; err != nil {
				t.Fatal(err)
			}
			away.Store(true)
			_ = m.conn.Close()
			time.Sleep(10*time.Minute + time.Second)
			away.Store(false)
			time.Sleep(time.Minute)
			synctest.Wait()
			lasted++
			for text, n := range map[string]int{"connection lost": 1, "still lost": 10, "is back": 1} {
				if said := strings.Count(log.String(), text); said < n*lasted-lasted || said > n*lasted {
					t.Errorf("after %d outages and %d attempts the log says %d times %q:\n%s", lasted, tried, said, text, log.String())
				}
			}
		}
		if !strings.Contains(log.String(), "is back") || tried < 500 {
			t.Errorf("%d attempts:\n%s", tried, log.String())
		}
	})
}
