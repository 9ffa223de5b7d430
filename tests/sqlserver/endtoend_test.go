package sqlserver_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/tests/tds"
	"github.com/twoqueue/twoqueue/verifier"
)

// The messages go end to end through RabbitMQ. For servers that heed hints, tests/verifier and
// tests/crash test this. The ledger logs its choice of the waiting lookup once, to the verifier's
// logger and to no other.
func TestTheVerifierJudgesRightWhereHintsAreIgnored(t *testing.T) {
	var global, own bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&global, nil)))
	defer slog.SetDefault(before)
	kind := stage.SQLServer
	kind.URL = func(t testing.TB) string {
		server := servertest.SQLServerStandIn(t, &tds.Options{Babelfish: true})
		return servertest.SQLServerDB(t, server.URL("master"), true)
	}
	s := stage.New(t, kind)
	queue := s.Queue("target", nil)
	want := s.Commit(stage.To(queue, "committed"))
	s.RollBack(stage.To(queue, "rolled back"))
	commits, ids := s.Begin(stage.To(queue, "slow"))
	rollsBack, _ := s.Begin(stage.To(queue, "rolled back, slowly"))
	v := s.Verify(verifier.Options{Logger: slog.New(slog.NewTextHandler(&own, nil))})
	s.Eventually("the messages of ended transactions are judged", func() bool {
		return v.Stats().Forwarded == 1 && v.Stats().Dropped == 1
	})
	must(t, commits.Commit())
	must(t, rollsBack.Rollback())
	s.Eventually("the others are judged", func() bool {
		return v.Stats().Forwarded == 2 && v.Stats().Dropped == 2
	})
	v.Stop()
	s.WaitEmpty(s.Topology.Queue)
	s.WantOnce(queue, append(want, ids...)...)
	if n := s.Depth(s.Topology.DeadQueue()) + s.Rows(); n != 0 {
		t.Errorf("%d messages or rows too many", n)
	}
	if said := strings.Count(own.String(), "using its fallback"); said != 1 {
		t.Errorf("the verifier's logger has it %d times, must be once:\n%s", said, own.String())
	}
	if global.Len() > 0 {
		t.Errorf("the global logger has:\n%s", global.String())
	}
}
