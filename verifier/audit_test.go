package verifier

import (
	"log/slog"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
)

// A copy for the audit queue that waited would hold its delivery unacked, and a trial with
// it would never end.
func TestACopyForAHeldAuditQueueIsLeftOut(t *testing.T) {
	s := &session{log: slog.New(slog.DiscardHandler), stats: &counters{}}
	s.holds = testHolds(time.Minute)
	s.forwarder = &forwarder{holds: s.holds, ended: s.ended}
	s.staging = newLane("q", 10, 1<<20, time.Hour, nil)
	s.waiting = newLane("w", 10, 1<<20, time.Hour, nil)
	to := bridge.Target{RoutingKey: "q.audit"}
	s.holds.behind(to)
	for range 5 {
		p := &parcel{lane: s.staging}
		s.staging.took(p, 1)
		s.forwarder.publish(&publication{message: &message{parcel: p}, course: audit, to: to})
	}
	if s.holds.size() != 0 || s.staging.open.Load() != 0 || s.forwarder.moving.value() != 0 {
		t.Errorf("%d wait, %d held, %d moving", s.holds.size(), s.staging.open.Load(), s.forwarder.moving.value())
	}
}
