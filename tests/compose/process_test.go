package compose

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
)

// A process is one of the stack's.
type process struct{ *program.Process }

func startProcess(t *testing.T, cmd *exec.Cmd) process {
	t.Helper()
	p := process{program.StartCmd(t, cmd)}
	t.Cleanup(func() {
		p.Kill() // has mostly ended already
		if strings.Contains(strings.ToLower(p.said()), "demo-only") {
			t.Errorf("%s has written a password", p)
		}
	})
	return p
}

// said is all that the process has written.
func (p process) said() string { return p.Stdout.String() + p.Stderr.String() }
