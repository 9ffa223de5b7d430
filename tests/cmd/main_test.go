// Package cmd_test runs the commands as their users do: the real binaries with an environment,
// signals and real servers.
package cmd_test

import (
	"regexp"
	"slices"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/stage"
)

func TestMain(m *testing.M) { program.Main(m) }

// must ends the test if a step fails that the test only depends on.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// process is a command that has been started.
type process struct {
	*program.Process
	t *testing.T
}

// defaults apply to every command: any number of them on one machine, with readable logs.
var defaults = []string{"BRIDGE_HTTP_ADDR=127.0.0.1:0", "BRIDGE_LOG_FORMAT=text", "BRIDGE_ALLOW=*:*"}

// start starts a command. args are its arguments and environment variables.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	return &process{program.Start(t, name, append(slices.Clone(defaults), args...)...), t}
}

// verify starts a verifier on a stage, and waits until its session runs.
func verify(t *testing.T, s *stage.Stage, more ...string) *process {
	t.Helper()
	p := start(t, "verifier", append([]string{"BRIDGE_DATABASE_URL=" + program.DatabaseURL(t, s.DatabaseURL), "BRIDGE_AMQP_URL=" + s.AMQP,
		"BRIDGE_QUEUE=" + s.Topology.Queue}, more...)...)
	p.Hear("session started")
	return p
}

// works runs a verifier until it has forwarded one message and dropped another, checks that it
// did nothing else, and returns its log.
func works(t *testing.T, s *stage.Stage, more ...string) (log string) {
	t.Helper()
	target := s.Queue("target", nil)
	p := verify(t, s, append([]string{"BRIDGE_LOG_LEVEL=debug"}, more...)...) // it logs a drop
	s.RollBack(stage.To(target, "rolled back"))
	id := s.Commit(stage.To(target, "committed"))[0].String()
	if d := s.Receive(target, 1)[0]; d.MessageId != id {
		t.Errorf("message %s at the target", d.MessageId)
	}
	s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	// A stop before the drop would hand the message back: a verifier first needs proof that the
	// senders commit on this server.
	p.Read(&p.Stderr, "a line about the drop", regexp.MustCompile(`msg("?:"|=)dropped`).MatchString)
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, queue := range []string{target, s.Topology.Queue, s.Topology.DeadQueue()} {
		if n := s.Depth(queue); n != 0 {
			t.Errorf("%d messages too many in %s", n, queue)
		}
	}
	return p.Stderr.String()
}
