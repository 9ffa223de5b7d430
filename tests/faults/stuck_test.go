package faults

import (
	"context"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A quorum queue whose process does not answer, as one that has no leader, blocks
// the broker's channel of whoever publishes to it for the first time there: half a
// minute for each message, in which that channel answers nothing, not even its
// closing. It may hold up nobody else (rule 8 of package bridge), nor the end of
// the verifier.
func TestATargetThatDoesNotAnswerHoldsUpItselfAlone(t *testing.T) {
	t.Parallel()
	address := servertest.Vhost(t)
	s := &stage{t: t, World: world.New(t, world.Config{
		Program:  world.Build(t, ""),
		Diary:    world.NewDiary(t, *diariesFlag),
		AMQP:     address,
		Shop:     servertest.PostgresDB(t),
		Post:     servertest.PostgresDB(t),
		Topology: bridge.Topology{Queue: "staging"},
	})}
	resume := servertest.SuspendQueue(t, address, "target.quorum")
	s.AddReceiver()
	s.verifier = s.AddVerifier()
	var script []parts.Transaction
	for range 50 {
		script = append(script, orders(1, world.Quorum), orders(1, world.Classic))
	}
	s.commit(script...)
	s.arrived(50)

	began := time.Now()
	s.must("stop verifier", s.verifier.Stop())
	t.Logf("the verifier ended after %v", time.Since(began).Round(time.Millisecond))
	resume()
	s.verifier.Start()
	s.must("finish", s.Finish(t.Context()))
	totals, violations, err := s.Judge(t.Context())
	s.must("judge", err)
	if len(violations) > 0 {
		t.Error(world.Summary(violations))
	}
	t.Log(totals)
}

// A quorum queue that does not answer in time counts for RabbitMQ as empty and without
// consumers. What it holds is not lost: the end of a run must wait for it.
func TestAQueueThatDoesNotAnswerIsNotEmpty(t *testing.T) {
	t.Parallel()
	s := newStage(t, world.Build(t, ""), "")
	s.commit(orders(3, world.Quorum))
	s.forgotten()
	resume := servertest.SuspendQueue(t, s.address, world.Quorum.RoutingKey)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.Finish(ctx); err == nil {
		_, violations, err := s.Judge(t.Context())
		t.Errorf("the run has come to its end: %v, error %v", world.Summary(violations), err)
	}
	resume()
	s.verifier.Start()
	s.AddReceiver()
	s.must("finish", s.Finish(t.Context()))
	totals, violations, err := s.Judge(t.Context())
	s.must("judge", err)
	if len(violations) > 0 || totals.Delivered != 3 {
		t.Errorf("%v%s", totals, world.Summary(violations))
	}
}
