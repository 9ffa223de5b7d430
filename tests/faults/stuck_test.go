package faults

import (
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A quorum queue without a leader does not answer. It blocks the broker's channel of any client
// that publishes to it for the first time on that channel: for half a minute per message the
// channel answers nothing, not even its closing. It must not hold up other targets (rule 8 of
// package bridge), nor the end of the verifier.
func TestATargetThatDoesNotAnswerHoldsUpItselfAlone(t *testing.T) {
	t.Parallel()
	var broker string
	s := newStage(t, func(c *world.Config) { broker = c.AMQP })
	resume := servertest.SuspendQueues(t, broker, world.Quorum.RoutingKey)
	s.AddReceiver()
	s.verifier = s.AddVerifier()
	var script []parts.Transaction
	for range 50 {
		script = append(script, orders(1, world.Quorum), orders(1, world.Classic))
	}
	s.commit(script...)
	s.arrived(50)

	began := time.Now()
	s.Must("stop verifier", s.verifier.Stop())
	t.Logf("the verifier ended after %v", time.Since(began).Round(time.Millisecond))
	resume()
	s.verifier.Start()
	s.End(0)
}
