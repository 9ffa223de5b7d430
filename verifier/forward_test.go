package verifier

import (
	"log/slog"
	"testing"
	"time"
)

// A drain waits for the forwarder, then for the next stage: a message that neither counts for a
// moment would be handed back although it was forwarded.
func TestTheForwarderCountsAMessageUntilItIsHandedOn(t *testing.T) {
	tests := map[string]struct {
		course course
		what   fate
		play   func(*forwarder, *publication)
	}{
		"placed at once": {forward, placed, func(f *forwarder, p *publication) {
			f.publish(p)
			f.end(p, placed, nil)
		}},
		"placed at the second attempt": {forward, placed, func(f *forwarder, p *publication) {
			f.publish(p)
			f.failed(p, Full, problem{})
			f.retry(later())
			f.end(p, placed, nil)
		}},
		"refused after its target was held": {forward, refused, func(f *forwarder, p *publication) {
			f.held.holdStuck(p.to)
			f.publish(p)
			f.retry(later())
			f.end(p, refused, nil)
		}},
		"expired": {forward, expired, func(f *forwarder, p *publication) {
			f.publish(p)
			f.failed(p, Missing, problem{})
			f.retry(later())
		}},
		"left out of the audit queue": {audit, leftOut, func(f *forwarder, p *publication) {
			f.publish(p)
			f.failed(p, Full, problem{})
		}},
		"left out, since the audit queue is held": {audit, leftOut, func(f *forwarder, p *publication) {
			f.held.holdStuck(p.to)
			f.publish(p)
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := &forwarder{held: testTargets(time.Minute), ready: newGatherer[*publication](), log: slog.New(slog.DiscardHandler), copies: 10}
			p := publicationsTo("target", 1)[0]
			p.course = test.course
			ends := 0
			f.onEnd = func(got *publication, what fate, _ error) {
				ends++
				if got != p || what != test.what {
					t.Errorf("it ends with fate %d, want %d", what, test.what)
				}
				if f.moving.value() != 1 {
					t.Errorf("%d are counted while it is handed on", f.moving.value())
				}
			}
			test.play(f, p)
			if ends != 1 || f.moving.value() != 0 || f.held.size() != 0 {
				t.Errorf("it ends %d times; %d are counted and %d wait", ends, f.moving.value(), f.held.size())
			}
		})
	}
}
