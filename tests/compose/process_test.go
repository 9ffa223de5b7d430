package compose

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// A process is one of the stack's.
type process struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	output *output
	ended  chan struct{}
}

func startProcess(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: cmd, output: new(output), ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // the exit code tells
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // has mostly ended already
		<-p.ended
		if t.Failed() {
			t.Logf("%s wrote\n%s", name, p.output)
		}
		if strings.Contains(strings.ToLower(p.output.String()), "demo-only") {
			t.Errorf("%s has written a password", name)
		}
	})
	return p
}

// await waits for the end and returns the exit code.
func (p *process) await() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("%s does not end", p.name)
		return -1
	}
}

// running ends the test if the process has ended.
func (p *process) running() {
	p.t.Helper()
	select {
	case <-p.ended:
		p.t.Fatalf("%s has ended with %d", p.name, p.cmd.ProcessState.ExitCode())
	default:
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
