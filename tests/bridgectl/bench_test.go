package bridgectl_test

import (
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// measured is what bench answers.
type measured struct {
	Committed, Failed, Delivered, Missing, Twice, Ghosts int
	RolledBack                                           int                                        `json:"rolled_back"`
	DeliveryRate                                         float64                                    `json:"delivered_per_second"`
	Latency                                              struct{ P50, P90, P99, P999, Max float64 } `json:"latency_ms"`
	Transaction                                          struct{ P50, Max float64 }                 `json:"transaction_ms"`
	Verifiers                                            string
	Interrupted                                          bool
}

func TestBenchMeasuresAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s := newScene(t, stage.Postgres)
	args := []string{"bench", "-n", "400", "-c", "8", "--rate=400", "--size=1000", "--rollback=25", "--target=measured", "--yes"}
	s.fails(1, `no verifier consumes queue "staging"; start one, or say --with-verifier`, args...)

	expect := func(m measured, verifiers string) {
		t.Helper()
		if m.Committed+m.RolledBack != 400 || m.RolledBack < 40 || m.RolledBack > 200 || m.Failed+m.Missing+m.Twice+m.Ghosts != 0 ||
			m.Delivered != m.Committed || m.DeliveryRate <= 0 || !strings.Contains(m.Verifiers, verifiers) || m.Interrupted {
			t.Errorf("%+v", m)
		}
		if l := m.Latency; l.P50 > l.P90 || l.P90 > l.P99 || l.P99 > l.P999 || l.P999 > l.Max || l.Max <= 0 || m.Transaction.P50 <= 0 {
			t.Errorf("latencies %+v", m)
		}
		s.Eventually("no row is left", func() bool { return s.Rows() == 0 })
		s.WaitDepth(s.Topology.DeadQueue(), 0)
	}
	var m measured
	began := time.Now()
	s.json(&m, append(args, "--with-verifier")...)
	if took := time.Since(began); took < 950*time.Millisecond {
		t.Errorf("400 transactions at 400 a second took %v", took)
	}
	expect(m, "one in this process")

	v := s.Verify(verifier.Options{Allow: []verifier.Allow{{RoutingKey: "measured"}}})
	m = measured{}
	s.json(&m, args...)
	expect(m, "1 consumer of queue staging")
	r := s.run("bench", "-n", "10", "--patience=1s", "--target=not-allowed", "--yes")
	if r.Code != 1 || !strings.Contains(r.Stderr, "10 committed messages did not come in time") || !strings.Contains(r.Stdout, "missing") {
		t.Errorf("exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	s.WaitDepth(s.Topology.DeadQueue(), 10)
	// Also what was rolled back in the first, should its verifier have run out of time.
	s.WaitDepth(s.Topology.Queue, 0)
	v.Stop()

	// The queue is gone, and one that is there is not touched.
	s.Queue("measured", nil)
	s.fails(1, `queue "measured" exists`, append(args, "--with-verifier")...)
}
