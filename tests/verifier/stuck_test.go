package verifier_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// times records, for each message to a queue, the time from its delivery to the deletion of its
// row.
type times struct {
	queue string
	mu    sync.Mutex
	took  []time.Duration
}

func (o *times) Done(e verifier.Event) {
	if e.Verdict == verifier.Forwarded && e.Message.RoutingKey == o.queue {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.took = append(o.took, e.Done.Sub(e.Received))
	}
}

func (o *times) SessionEnded(error) {}

func (o *times) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.took)
}

// longest returns the longest of the times, from the one with index first on.
func (o *times) longest(first int) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Max(o.took[first:])
}

// A queue that stops confirming in the middle of a burst holds up no other target, even for more
// messages than RabbitMQ's credit flow lets pass behind it.
func TestATargetThatNeverConfirmsHoldsUpItselfAlone(t *testing.T) {
	t.Parallel()
	const before, behind = 50, 600
	s := stage.New(t, stage.Postgres)
	stuck := s.Queue("stuck", amqp.Table{"x-queue-type": "quorum"})
	other := s.Queue("other", nil)
	seen := &times{queue: other}
	// A message that waits for the timeout is not done in time.
	v := s.Verify(verifier.Options{Observer: seen, ConfirmTimeout: 2 * stage.Patience})
	stuckIDs, otherIDs := map[string]bool{}, map[string]bool{}
	send := func(n int) {
		t.Helper()
		for i := range n {
			ids := s.Commit(stage.To(stuck, fmt.Sprint(i)), stage.To(other, fmt.Sprint(i)))
			stuckIDs[ids[0].String()], otherIDs[ids[1].String()] = true, true
		}
		s.Eventually("all others are through", func() bool { return seen.count() == len(otherIDs) })
	}
	send(before)
	resume := servertest.SuspendQueues(t, s.AMQP, stuck)
	send(behind) // messages in flight behind the first stuck one wait until its silence is noticed
	if servertest.FeaturesOf(t, s.AMQP).NacksForSilentQueue {
		s.Eventually("the target is held", func() bool { return len(v.State().Targets) == 1 })
		send(1) // this one waits and is tried, even if the others were in flight before
		s.Eventually("the broker answers in place of the queue", func() bool {
			held := v.State().Targets
			return len(held) == 1 && held[0].Reason == verifier.Full
		})
	}
	began, noticed := time.Now(), seen.count()
	send(behind)
	lasted, longest := time.Since(began), seen.longest(noticed)
	t.Logf("then the others took %v at most, and all together %v", longest, lasted)
	if longest > lasted/2 {
		t.Errorf("then one of the others took %v, and all together %v", longest, lasted)
	}
	resume()
	expectAll(t, s, stuck, stuckIDs)
	expectAll(t, s, other, otherIDs)
	s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	if n := v.Stats(); n.Sessions != 1 || n.DeadLettered != 0 {
		t.Errorf("stats %+v", n)
	}
}

// More targets never confirm than are tried at the same time. The first trial of another target
// does not wait for theirs.
func TestTrialsOfStuckTargetsKeepNoOtherWaiting(t *testing.T) {
	t.Parallel()
	const trials = 4 // at the same time, over a connection each
	const timeout = 30 * time.Second
	var connections atomic.Int64
	s := stage.New(t, stage.Postgres)
	_, through := servertest.NewGate(t, s.AMQP, func(f servertest.Frame) bool {
		if !f.Reply && f.N == 0 {
			connections.Add(1)
		}
		return false
	})
	s.Broker = dial(t, through)
	other := s.Queue("other", nil)
	v := s.Verify(verifier.Options{ConfirmTimeout: timeout, Drain: time.Second, Unroutable: time.Hour, Patience: time.Hour})
	var stuck []string
	for i := range trials + 1 {
		stuck = append(stuck, s.Queue(fmt.Sprint("stuck-", i), amqp.Table{"x-queue-type": "quorum"}))
		s.Commit(stage.To(stuck[i], ""))
		s.Receive(stuck[i], 1)
	}
	before := connections.Load()
	servertest.SuspendQueues(t, s.AMQP, stuck...)
	sendAll := func() {
		for _, queue := range stuck {
			s.Commit(stage.To(queue, ""), stage.To(queue, ""))
		}
	}
	sendAll()
	s.Eventually("they are held", func() bool {
		expectAll(t, s, other, goodBatch(s, other, 10)) // they fall behind others
		return len(v.State().Targets) == len(stuck)
	})
	sendAll() // the first ones may still be in flight
	s.Eventually("as many are tried as may be", func() bool { return connections.Load() >= before+trials })
	began := time.Now()
	s.Commit(bridge.Message{Exchange: "missing", RoutingKey: "k"})
	s.Eventually("the missing exchange is known", func() bool {
		return slices.ContainsFunc(v.State().Targets, func(h verifier.UnavailableTarget) bool { return h.Reason == verifier.Missing })
	})
	if took := time.Since(began); took > timeout/3 { // a trial takes all of it
		t.Errorf("it took %v", took)
	}
}
