package faults

import (
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A verifier is frozen while it holds messages of many keys. The broker gives them to
// another one. When the first one wakes it may publish what it had in hand, and nothing is
// out of order by that.
func TestAFrozenVerifierThatWakesChangesNoOrder(t *testing.T) {
	t.Parallel()
	s := &stage{t: t, World: world.New(t, world.Config{
		Diary:    world.NewDiary(t, *diariesFlag),
		AMQP:     servertest.Vhost(t),
		Shop:     servertest.PostgresDB(t),
		Post:     servertest.PostgresDB(t),
		Topology: bridge.Topology{Queue: "staging", OrderedShards: 1},
		Keys:     6,
		Pause:    50 * time.Millisecond,
	})}
	s.AddReceiver()
	first := s.AddVerifier()
	s.await("the first verifier", first.Await("session started"))
	second := s.AddVerifier()
	s.await("the second verifier", second.Await("session started"))
	forwards := first.Await(parts.ToForget)
	s.AddSender(4, 1)
	s.await("the first one forwards", forwards)
	s.arrived(100)
	first.Freeze()
	// The broker gives up a client that is silent for two heartbeats, and gives what that one
	// had to the second one. The first one had no more on its way than a message of each key.
	before := -1
	s.must("wait", world.Eventually(t.Context(), "the second one has taken over", patience, func() (bool, error) {
		var n int
		err := s.Post().QueryRowContext(t.Context(), `SELECT count(DISTINCT id) FROM arrivals WHERE queue = 'target.ordered'`).Scan(&n)
		if before < 0 && err == nil {
			before = n
		}
		return n >= before+100, err
	}))
	first.Thaw()
	s.must("finish", s.Finish(t.Context()))
	totals, violations, err := s.Judge(t.Context())
	s.must("judge", err)
	if len(violations) > 0 {
		t.Log(s.Histories(violations))
		t.Error(world.Summary(violations))
	}
	if totals.InOrder < 200 {
		t.Errorf("too few are in order to show anything: %v", totals)
	}
	t.Log(totals)
}
