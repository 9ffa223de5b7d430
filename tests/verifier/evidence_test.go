package verifier_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// A copy has only rows from before the session, and stages the messages of its carried rows too: they
// are forwarded, and are no evidence.
func TestNeitherAnOldRowNorAMessageStagedAgainIsEvidence(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	s.Strict = true
	target := s.Queue("target", nil)
	s.Commit(stage.To(target, "before"))
	s.RollBack(stage.To(target, "rolled back"))
	v := s.Verify(verifier.Options{})
	s.Receive(target, 1)
	expectWaitingForEvidence(t, s, v, 1)
	s.CommitCarried(stage.To(target, "carried"))
	s.Receive(target, 1)
	expectWaitingForEvidence(t, s, v, 1)
	s.Commit(stage.To(target, "since"))
	s.Receive(target, 1)
	expectDropped(t, s, v, 1)
}

// More messages look rolled back than a verifier may hold. They circulate through the waiting
// queue, and a stop of the verifier loses none.
func TestManyMessagesWaitForEvidence(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	s.Strict = true
	target := s.Queue("target", nil)
	const most = 100
	for i := range most {
		s.RollBack(stage.To(target, fmt.Sprint(i)))
	}
	options := verifier.Options{Prefetch: 40, Patience: 50 * time.Millisecond}
	v := s.Verify(options)
	s.Eventually("most are set aside", func() bool { return v.Stats().SetAside >= most-20 })
	v.Stop()
	if n := v.Stats().Dropped; n > 0 {
		t.Fatalf("%d are dropped without evidence", n)
	}
	v = s.Verify(options)
	s.Eventually("some wait for evidence", func() bool { return v.State().Waiting.Evidence > 0 })
	s.Commit(stage.To(target, "committed"))
	s.Receive(target, 1)
	expectDropped(t, s, v, most)
}

// A message with an order key that looks rolled back holds its key. A message behind it, recorded
// after the session began, is the evidence.
func TestAnOrderedMessageWaitsForEvidence(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, bridge.Topology{OrderedShards: 1})
	s.Strict = true
	target := s.Queue("target", nil)
	keyed := func(body string) bridge.Message {
		m := stage.To(target, body)
		m.OrderKey = "key"
		return m
	}
	s.RollBack(keyed("rolled back"))
	s.Commit(keyed("before"))
	v := s.Verify(verifier.Options{})
	expectWaitingForEvidence(t, s, v, 1)
	if n := s.Depth(target); n > 0 {
		t.Errorf("%d messages have overtaken", n)
	}
	s.Commit(keyed("since"))
	for i, d := range s.Receive(target, 2) {
		if want := []string{"before", "since"}[i]; string(d.Body) != want {
			t.Errorf("%q comes where %q must come", d.Body, want)
		}
	}
	expectDropped(t, s, v, 1)
}

// expectWaitingForEvidence waits until this number of messages waits for evidence, and fails the test if
// one is dropped.
func expectWaitingForEvidence(t *testing.T, s *stage.Stage, v *stage.Running, messages int) {
	t.Helper()
	s.Eventually("messages wait for evidence, or are dropped", func() bool { return v.State().Waiting.Evidence == messages || v.Stats().Dropped > 0 })
	if n := v.Stats().Dropped; n > 0 {
		t.Fatalf("%d messages are dropped without evidence", n)
	}
	if state := v.State(); state.Waiting.EvidenceSince.IsZero() || !state.Evidence.IsZero() {
		t.Errorf("the state says %+v", state)
	}
}

// expectDropped waits until this number of messages is dropped.
func expectDropped(t *testing.T, s *stage.Stage, v *stage.Running, messages int64) {
	t.Helper()
	s.Eventually("messages are dropped", func() bool { return v.Stats().Dropped == messages })
	if state := v.State(); !state.Waiting.EvidenceSince.IsZero() || state.Evidence.IsZero() || state.Waiting.Evidence > 0 {
		t.Errorf("the state says %+v", state)
	}
}
