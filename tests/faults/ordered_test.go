package faults

import (
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/faults/world"
)

// A verifier is frozen while it holds messages of many keys, and the broker gives these to another
// verifier. When the first one wakes, it may publish the messages in its hands. Nothing is out of
// order then.
func TestAFrozenVerifierThatWakesChangesNoOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(c *world.Config) {
		c.Topology.OrderedShards, c.Keys, c.Pause = 1, 6, 50*time.Millisecond
	})
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
	// The broker gives up a client that is silent for two heartbeats, and gives its messages to the
	// second verifier. The first one had at most one message of each key on its way.
	s.AwaitMore("the second one has taken over", s.Post(), `SELECT count(DISTINCT id) FROM arrivals WHERE queue = 'target.ordered'`, 100)
	first.Thaw()
	s.End(200)
}
