package program

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/compose/servers/children"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A Process is a started program.
type Process struct {
	Stdout, Stderr servertest.Log

	t     testing.TB
	cmd   *exec.Cmd
	child *children.Child
}

// Start starts a command; see Command.
func Start(t testing.TB, command string, args ...string) *Process {
	t.Helper()
	return StartCmd(t, Command(t, command, args...))
}

// StartCmd starts any program, and records the outputs that the caller has not redirected.
func StartCmd(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := start(t, cmd)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s wrote\n%s%s", p, end(&p.Stdout), end(&p.Stderr))
		}
	})
	return p
}

// A Result is the exit code and the output of a command.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Run starts a command and waits for its end. It logs no output.
func Run(t testing.TB, command string, args ...string) Result {
	t.Helper()
	return RunCmd(t, Command(t, command, args...))
}

// RunCmd does the same for any program.
func RunCmd(t testing.TB, cmd *exec.Cmd) Result {
	t.Helper()
	p := start(t, cmd)
	defer p.Kill()
	code := p.Await()
	return Result{code, p.Stdout.String(), p.Stderr.String()}
}

func start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{t: t, cmd: cmd}
	if cmd.Stdout == nil {
		cmd.Stdout = &p.Stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &p.Stderr
	}
	var err error
	if p.child, err = children.Start(cmd); err != nil {
		t.Fatalf("start %s: %v", p, err)
	}
	return p
}

// String returns the program's name with its arguments, without its variables.
func (p *Process) String() string {
	return strings.Join(append([]string{filepath.Base(p.cmd.Path)}, p.cmd.Args[1:]...), " ")
}

// Running fails the test if the process has ended.
func (p *Process) Running() {
	p.t.Helper()
	if p.HasEnded() {
		p.t.Fatalf("%s has ended with %d", p, p.cmd.ProcessState.ExitCode())
	}
}

// HasEnded reports whether the process has ended.
func (p *Process) HasEnded() bool { return p.child.HasEnded() }

// Await waits for the end and returns the exit code.
func (p *Process) Await() int {
	p.t.Helper()
	if !p.child.Await(servertest.Patience) {
		p.t.Fatalf("%s does not end; it wrote\n%s%s", p, end(&p.Stdout), end(&p.Stderr))
	}
	if err, exit := p.child.Err(), new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		p.t.Fatalf("wait for %s: %v", p, err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal.
func (p *Process) Signal(s os.Signal) {
	p.t.Helper()
	if err := p.child.Signal(s); err != nil {
		p.t.Fatalf("signal %s: %v", p, err)
	}
}

// Stop sends SIGTERM, waits for the end and returns the exit code.
func (p *Process) Stop() int {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	return p.Await()
}

// Kill sends SIGKILL, returns when the process has ended, and reports whether SIGKILL ended it.
func (p *Process) Kill() (killed bool) {
	p.t.Helper()
	p.child.Kill()
	if errors.Is(p.child.Err(), exec.ErrWaitDelay) {
		p.t.Errorf("%s has left processes behind, which hold its output", p)
	}
	return p.child.Killed()
}

// KillRunning kills a process, and fails the test if the process had ended by itself.
func (p *Process) KillRunning() {
	p.t.Helper()
	if !p.Kill() {
		p.t.Fatalf("%s had ended before it was killed", p)
	}
}

// shownTail is the number of bytes of an output that a failed test logs.
const shownTail = 8 << 10

// end returns the end of an output, which explains a failure.
func end(o *servertest.Log) string {
	text := o.String()
	if len(text) <= shownTail {
		return text
	}
	return fmt.Sprintf("(%d bytes before) ...%s", len(text)-shownTail, text[len(text)-shownTail:])
}

// Hear waits until the process has written text to its standard error, which has the log.
func (p *Process) Hear(text string) {
	p.t.Helper()
	p.Read(&p.Stderr, fmt.Sprintf("%q", text), func(said string) bool { return strings.Contains(said, text) })
}

// Read waits until is accepts the text of one of the process's outputs, and returns the text.
func (p *Process) Read(o *servertest.Log, what string, is func(said string) bool) string {
	p.t.Helper()
	limit := time.NewTimer(servertest.Patience)
	defer limit.Stop()
	for ended := false; ; {
		more := o.More()
		said := o.String()
		if is(said) {
			return said
		}
		if ended {
			p.t.Fatalf("%s has ended with %d, and has not said %s", p, p.cmd.ProcessState.ExitCode(), what)
		}
		select {
		case <-more:
		case <-p.child.Ended():
			ended = true
		case <-limit.C:
			p.t.Fatalf("%s does not say %s", p, what)
		}
	}
}
