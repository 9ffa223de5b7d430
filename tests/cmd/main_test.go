// Package cmd_test runs the commands as their users do: the real binaries, with
// an environment, signals and real servers.
package cmd_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// binaries is the folder with the commands.
var binaries string

func TestMain(m *testing.M) { os.Exit(withBinaries(func() int { return servertest.Run(m) })) }

func withBinaries(run func() int) int {
	dir, err := os.MkdirTemp("", "twoqueue-cmd-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	build := exec.Command("go", "build", "-o", binaries, "../../cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as ./compose/demo does
	if output, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the commands: %v\n%s", err, output)
		return 1
	}
	return run()
}

// A process is a command that has been started.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout output
	stderr output
	ended  chan error
}

// defaults are for all: any number of workers on one machine, and logs to read.
var defaults = []string{"BRIDGE_HTTP_ADDR=127.0.0.1:0", "BRIDGE_LOG_FORMAT=text"}

// start starts a command; args are its arguments, and its variables where they
// have the form NAME=value. None of our own BRIDGE_ and OTEL_ variables reach it.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(filepath.Join(binaries, name)), ended: make(chan error, 1)}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "BRIDGE_") && !strings.HasPrefix(entry, "OTEL_") {
			p.cmd.Env = append(p.cmd.Env, entry)
		}
	}
	p.cmd.Env = append(p.cmd.Env, defaults...)
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") {
			p.cmd.Args = append(p.cmd.Args, arg)
		} else {
			p.cmd.Env = append(p.cmd.Env, arg)
		}
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // has mostly ended already
		p.ended <- <-p.ended
		if t.Failed() {
			t.Logf("%s wrote\n%s%s", name, &p.stdout, &p.stderr)
		}
	})
	return p
}

// await waits for the end and returns the exit code.
func (p *process) await() int {
	p.t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			p.t.Fatal(err)
		}
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(2 * stage.Patience):
		p.t.Fatalf("%s does not end", p.cmd.Path)
		return -1
	}
}

// hear waits until the process has written text.
func (p *process) hear(o *output, text string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("the process says %q", text), func() bool {
		if len(p.ended) > 0 && !strings.Contains(o.String(), text) {
			p.t.Fatalf("it ended without saying %q", text)
		}
		return strings.Contains(o.String(), text)
	})
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// output is what a process has written so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// eventually polls what no process will signal.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(stage.Patience)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		<-ticker.C
	}
}
