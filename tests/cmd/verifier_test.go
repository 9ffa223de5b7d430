package cmd_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// verify starts a verifier on a stage, and waits until it works.
func verify(t *testing.T, s *stage.Stage, more ...string) *process {
	t.Helper()
	p := start(t, "verifier", append([]string{"BRIDGE_DATABASE_URL=" + databaseURL(s), "BRIDGE_AMQP_URL=" + s.AMQP,
		"BRIDGE_QUEUE=" + s.Topology.Queue}, more...)...)
	p.Hear("session started")
	return p
}

// works runs a worker until it has done its work, and nothing else.
func works(t *testing.T, s *stage.Stage, more ...string) {
	t.Helper()
	target := s.Queue("target", nil)
	p := verify(t, s, more...)
	s.RollBack(stage.To(target, "rolled back"))
	id := s.Commit(stage.To(target, "committed"))[0].String()
	if d := s.Receive(target, 1)[0]; d.MessageId != id {
		t.Errorf("message %s at the target", d.MessageId)
	}
	s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, queue := range []string{target, s.Topology.Queue, s.Topology.DeadQueue()} {
		if n := s.Depth(queue); n != 0 {
			t.Errorf("%d messages too many in %s", n, queue)
		}
	}
}

// databaseURL is the stage's database as the commands name it.
func databaseURL(s *stage.Stage) string {
	if file, ok := strings.CutPrefix(s.DatabaseURL, "file:"); ok {
		path, _, _ := strings.Cut(file, "?")
		return "sqlite:" + path
	}
	return s.DatabaseURL
}

// SIGTERM with thousands in flight: exit code 0, nothing lost, nothing twice,
// nothing left unacked.
func TestSIGTERMInFlight(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	target := s.Queue("target", nil)
	const transactions, each = 40, 500
	want := make(map[string]bool)
	for i := range transactions {
		messages := make([]bridge.Message, each)
		for j := range messages {
			messages[j] = stage.To(target, fmt.Sprint(i, j))
		}
		for _, id := range s.Commit(messages...) {
			want[id.String()] = true
		}
	}
	const rolledBack = 20
	for range rolledBack {
		s.RollBack(stage.To(target, "rolled back"))
	}
	p := verify(t, s)
	s.Eventually("some are through", func() bool { return s.Depth(target) > 1000 })
	const open = "every target is allowed"
	if code := p.Stop(); code != 0 || !strings.Contains(p.Stderr.String(), open) {
		t.Errorf("exit code %d, or it does not say that the allow-list is open", code)
	}
	through := s.Depth(target)
	t.Logf("%d of %d were through at the end", through, len(want))
	if through == len(want) {
		t.Error("all are through: the signal came too late to show anything")
	}
	// Whatever is not through is ready again: nothing is unacked. Groups come back
	// whole, with those of their members that are through.
	s.Eventually("the rest is handed back", func() bool {
		left := len(s.Staged()) + len(s.Waiting())
		return left >= len(want)-through && left <= len(want)+rolledBack
	})

	p = verify(t, s, "BRIDGE_LOG_FORMAT=json", "BRIDGE_ALLOW=*:*")
	for _, d := range s.Receive(target, len(want)) {
		if !want[d.MessageId] {
			t.Fatalf("message %s came twice, or is not committed", d.MessageId)
		}
		delete(want, d.MessageId)
	}
	s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	p.Signal(syscall.SIGINT)
	if code := p.Await(); code != 0 || strings.Contains(p.Stderr.String(), open) {
		t.Errorf("exit code %d, or it says that the allow-list is open", code)
	}
	for line := range bytes.Lines([]byte(p.Stderr.String())) {
		if !json.Valid(line) {
			t.Errorf("the log is not JSON: %s", line)
		}
	}
	for _, queue := range []string{target, s.Topology.DeadQueue()} {
		if n := s.Depth(queue); n != 0 {
			t.Errorf("%d messages too many in %s", n, queue)
		}
	}
}
