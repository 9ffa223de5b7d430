package forward

import (
	"log/slog"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

func newForwarder() *Forwarder {
	return New(Config{Unroutable: time.Minute, Copies: 10, Log: slog.New(slog.DiscardHandler)})
}

// A drain waits for the forwarder, then for the next stage: a message that neither counts for a
// moment would be handed back although it was forwarded.
func TestTheForwarderCountsAMessageUntilItIsHandedOn(t *testing.T) {
	tests := map[string]struct {
		once   bool
		result Result
		play   func(*Forwarder, *Publication)
	}{
		"placed at once": {false, Placed, func(f *Forwarder, p *Publication) {
			f.Publish(p)
			f.end(p, Placed, nil)
		}},
		"placed at the second attempt": {false, Placed, func(f *Forwarder, p *Publication) {
			f.Publish(p)
			f.failed(p, Full, problem{})
			f.Retry(later())
			f.end(p, Placed, nil)
		}},
		"refused after its target was held": {false, Refused, func(f *Forwarder, p *Publication) {
			f.held.holdStuck(p.To)
			f.Publish(p)
			f.Retry(later())
			f.end(p, Refused, nil)
		}},
		"expired": {false, Expired, func(f *Forwarder, p *Publication) {
			f.Publish(p)
			f.failed(p, Missing, problem{})
			f.Retry(later())
		}},
		"skipped for the audit queue": {true, Skipped, func(f *Forwarder, p *Publication) {
			f.Publish(p)
			f.failed(p, Full, problem{})
		}},
		"skipped, since the audit queue is held": {true, Skipped, func(f *Forwarder, p *Publication) {
			f.held.holdStuck(p.To)
			f.Publish(p)
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newForwarder()
			p := publicationsTo("target", 1)[0]
			p.Once = test.once
			ends := 0
			f.ended = func(got *Publication, result Result, _ error) {
				ends++
				if got != p || result != test.result {
					t.Errorf("it ends with result %d, want %d", result, test.result)
				}
				if f.moving.Value() != 1 {
					t.Errorf("%d are counted while it is handed on", f.moving.Value())
				}
			}
			test.play(f, p)
			if ends != 1 || f.moving.Value() != 0 || f.held.size() != 0 {
				t.Errorf("it ends %d times; %d are counted and %d wait", ends, f.moving.Value(), f.held.size())
			}
		})
	}
}

func TestPublicationsAreRemovedWhereverTheyWaitForAChannel(t *testing.T) {
	f := newForwarder()
	removed := publicationsTo("removed", 3)
	for i, p := range removed {
		f.Publish(p)
		f.Publish(publicationsTo("stays", 1)[0])
		if i > 0 {
			to := f.solo
			if i > 1 {
				to = f.stuck
			}
			to.Add(f.ready.Take(2)...)
		}
	}
	out := f.RemoveUnsent(func(p *Publication) bool { return p.To == bridge.Target{RoutingKey: "removed"} })
	if len(out) != len(removed) || f.moving.Value() != 3 || f.ready.Count()+f.solo.Count()+f.stuck.Count() != 3 {
		t.Errorf("%d are removed, %d are counted", len(out), f.moving.Value())
	}
}
