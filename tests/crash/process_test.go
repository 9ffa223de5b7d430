package crash_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/stage"
)

// A process is a victim, seen from its parent.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	dead   bool
}

// start starts a victim on the world's database and broker, unless the brief says
// others.
func (w *world) start(b brief) *process {
	w.t.Helper()
	b.Kind, b.Target, b.Options.Topology = w.Kind.Name, w.target, w.Topology
	if b.DatabaseURL == "" {
		b.DatabaseURL = w.DatabaseURL
	}
	if b.AMQP == "" {
		b.AMQP = w.AMQP
	}
	text, err := json.Marshal(b)
	w.must("write brief", err)
	program, err := os.Executable()
	w.must("find own program", err)
	p := &process{t: w.t, cmd: exec.Command(program)}
	p.cmd.Env = append(os.Environ(), briefVariable+"="+string(text))
	p.cmd.Stderr = testLog{w.t}
	p.stdin, err = p.cmd.StdinPipe()
	w.must("make pipe", err)
	stdout, err := p.cmd.StdoutPipe()
	w.must("make pipe", err)
	p.stdout = bufio.NewReader(stdout)
	w.must("start victim", p.cmd.Start())
	w.t.Cleanup(p.end)
	return p
}

// reached waits until the victim has reached its point; there it stays.
func (p *process) reached(at point) {
	p.t.Helper()
	defer time.AfterFunc(stage.Patience, func() { _ = p.cmd.Process.Kill() }).Stop()
	line, err := p.stdout.ReadString('\n')
	if said := strings.TrimSuffix(line, "\n"); err != nil || said != string(at) {
		p.t.Fatalf("the victim said %q (%v), not %q", said, err, at)
	}
}

// reachedOneOf is reached where two of the victim's goroutines stop in any order.
func (p *process) reachedOneOf(points ...point) {
	p.t.Helper()
	defer time.AfterFunc(stage.Patience, func() { _ = p.cmd.Process.Kill() }).Stop()
	line, err := p.stdout.ReadString('\n')
	if said := strings.TrimSuffix(line, "\n"); err != nil || !slices.Contains(points, point(said)) {
		p.t.Fatalf("the victim said %q (%v), none of %q", said, err, points)
	}
}

// killWherever is kill where other goroutines of the victim may have stopped since.
func (p *process) killWherever() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatalf("the victim was dead already: %v", err)
	}
	p.end()
}

func (p *process) goOn() {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, "go on\n"); err != nil {
		p.t.Fatalf("speak to the victim: %v", err)
	}
}

// kill kills the victim with SIGKILL. It must not have got to another point since
// the last one that it reached.
func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatalf("the victim was dead already: %v", err)
	}
	if rest, err := io.ReadAll(p.stdout); err != nil || len(rest) > 0 {
		p.t.Errorf("the victim went on: it said %q (%v)", rest, err)
	}
	p.end()
}

func (p *process) end() {
	if p.dead {
		return
	}
	p.dead = true
	_ = p.cmd.Process.Kill()
	_ = p.stdin.Close()
	_ = p.cmd.Wait() // says that it was killed
}

type testLog struct{ t *testing.T }

func (l testLog) Write(text []byte) (int, error) {
	l.t.Logf("victim: %s", strings.TrimSpace(string(text)))
	return len(text), nil
}
