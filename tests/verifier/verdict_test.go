// Package verifier_test checks a running verifier against the rules of package bridge, on real
// servers.
package verifier_test

import (
	"fmt"
	"testing"

	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func onAll(t *testing.T, test func(t *testing.T, s *stage.Stage)) {
	for _, kind := range stage.Everywhere {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			test(t, stage.New(t, kind))
		})
	}
}

func TestCommittedIsForwardedAndRolledBackIsDropped(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		queue := s.Queue("target", nil)
		want := map[string]bool{}
		for i := range 50 {
			want[s.Commit(stage.To(queue, fmt.Sprint(i)))[0].String()] = true
			s.RollBack(stage.To(queue, "rolled back"))
		}
		v := s.Verify(verifier.Options{})
		for _, d := range s.Receive(queue, len(want)) {
			if !want[d.MessageId] {
				t.Errorf("message %s: not committed, or delivered twice", d.MessageId)
			}
			delete(want, d.MessageId)
			if string(d.Body) == "rolled back" || len(d.Headers) != 0 {
				t.Errorf("message %s: body %q, headers %v", d.MessageId, d.Body, d.Headers)
			}
		}
		s.Eventually("50 dropped", func() bool { return v.Stats().Dropped == 50 })
		v.Stop()
		s.WaitEmpty(s.Topology.Queue)
		if n := s.Depth(queue); n != 0 {
			t.Errorf("%d messages too many at the target", n)
		}
		if n := s.Rows(); n != 0 {
			t.Errorf("%d rows left in the ledger", n)
		}
	})
}
