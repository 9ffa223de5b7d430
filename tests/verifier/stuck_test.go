package verifier_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// times keeps how long each message for a queue took, from its delivery until its row was
// deleted.
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

// p99 is of the times from the first one on.
func (o *times) p99(first int) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	took := slices.Sorted(slices.Values(o.took[first:]))
	return took[len(took)*99/100]
}

// A queue that stops to confirm in the middle of a burst holds up nothing of the other
// targets, for more messages than RabbitMQ's credit flow lets through behind it.
func TestATargetThatNeverConfirmsHoldsUpItselfAlone(t *testing.T) {
	t.Parallel()
	const transactions = 600
	s := stage.New(t, stage.Postgres)
	stuck := s.Queue("stuck", amqp.Table{"x-queue-type": "quorum"})
	other := s.Queue("other", nil)
	seen := &times{queue: other}
	// Whoever waited for a time-out would not be through in time.
	v := s.Verify(verifier.Options{Observer: seen, ConfirmTimeout: 2 * stage.Patience})
	stuckIDs, otherIDs := map[string]bool{}, map[string]bool{}
	send := func() {
		t.Helper()
		for i := range transactions {
			ids := s.Commit(stage.To(stuck, fmt.Sprint(i)), stage.To(other, fmt.Sprint(i)))
			stuckIDs[ids[0].String()], otherIDs[ids[1].String()] = true, true
		}
	}
	send()
	s.Eventually("all are through", func() bool { return seen.count() == transactions })
	usual := seen.p99(0)
	resume := servertest.SuspendQueue(t, s.AMQP, stuck)
	send()
	s.Eventually("all others are through", func() bool { return seen.count() == 2*transactions })
	// A shared machine's own hiccups are not the point.
	const hiccup = 10 * time.Second
	got := seen.p99(transactions)
	t.Logf("p99 of the others: %v, usually %v", got, usual)
	if got > max(2*usual, hiccup) {
		t.Errorf("p99 of the others is %v, usually %v", got, usual)
	}
	resume()
	expectAll(t, s, stuck, stuckIDs)
	expectAll(t, s, other, otherIDs)
	s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	if n := v.Stats(); n.Sessions != 1 || n.DeadLettered != 0 {
		t.Errorf("stats %+v", n)
	}
}

// More targets never confirm than are tried at the same time. Nobody else's first trial
// waits for theirs.
func TestTrialsOfStuckTargetsKeepNoOtherWaiting(t *testing.T) {
	t.Parallel()
	const timeout = 30 * time.Second
	s := stage.New(t, stage.Postgres)
	other := s.Queue("other", nil)
	v := s.Verify(verifier.Options{ConfirmTimeout: timeout, Unroutable: time.Hour, Patience: time.Hour})
	var stuck []string
	for i := range 6 {
		stuck = append(stuck, s.Queue(fmt.Sprint("stuck-", i), amqp.Table{"x-queue-type": "quorum"}))
		s.Commit(stage.To(stuck[i], ""))
		s.Receive(stuck[i], 1)
	}
	for _, queue := range stuck {
		servertest.SuspendQueue(t, s.AMQP, queue)
	}
	for _, queue := range stuck {
		s.Commit(stage.To(queue, ""), stage.To(queue, ""))
	}
	s.Eventually("they are held", func() bool {
		expectAll(t, s, other, goodBatch(s, other, 10)) // they fall behind others
		return len(v.State().Targets) == len(stuck)
	})
	for _, queue := range stuck { // the first ones may be in flight still
		s.Commit(stage.To(queue, ""), stage.To(queue, ""))
	}
	tried := time.Now()
	s.Eventually("all are being tried, if they can", func() bool {
		return time.Since(tried) > 2*time.Second && !slices.ContainsFunc(v.State().Targets, func(h verifier.HeldTarget) bool { return h.Messages == 0 })
	})
	began := time.Now()
	s.Commit(bridge.Message{Exchange: "missing", RoutingKey: "k"})
	s.Eventually("the missing exchange is known", func() bool {
		return slices.ContainsFunc(v.State().Targets, func(h verifier.HeldTarget) bool { return h.Reason == verifier.Missing })
	})
	took := time.Since(began)
	t.Logf("it took %v", took)
	if took > timeout/3 {
		t.Errorf("it took %v", took)
	}
}
