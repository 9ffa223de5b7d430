package crash_test

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// process is a victim, seen from its parent.
type process struct {
	*program.Process
	t     *testing.T
	stdin io.Writer
	heard int // points that it has reached
}

// start starts a victim on the world's database and broker, or on the ones that the brief names.
func (w *world) start(b brief) *process {
	w.t.Helper()
	b.Kind, b.Target, b.Options.Topology = w.Kind.Name, w.target, w.Topology
	if b.DatabaseURL == "" {
		b.DatabaseURL = w.DatabaseURL
	}
	if b.AMQP == "" {
		b.AMQP = w.AMQP
	}
	cmd := servertest.Again(w.t, briefVariable, b)
	stdin, err := cmd.StdinPipe()
	w.must("make pipe", err)
	return &process{Process: program.StartCmd(w.t, cmd), t: w.t, stdin: stdin}
}

// reached waits until the victim has reached a point, where it then waits. Several points are for
// two goroutines of the victim that stop in any order: reached waits for one of these points.
func (p *process) reached(points ...point) {
	p.t.Helper()
	said := p.Read(&p.Stdout, fmt.Sprintf("any of %q", points), func(said string) bool { return strings.Count(said, "\n") > p.heard })
	if at := strings.Split(said, "\n")[p.heard]; !slices.Contains(points, point(at)) {
		p.t.Fatalf("the victim said %q, none of %q", at, points)
	}
	p.heard++
}

// killAt starts a victim and kills it when it has reached a point.
func (w *world) killAt(at point, b brief) {
	w.t.Helper()
	p := w.start(b)
	p.reached(at)
	p.kill()
}

func (p *process) goOn() {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, "go on\n"); err != nil {
		p.t.Fatalf("speak to the victim: %v", err)
	}
}

// kill kills the victim, which must not have reached another point since the last call of
// reached.
func (p *process) kill() {
	p.t.Helper()
	p.KillRunning()
	if said := p.Stdout.String(); strings.Count(said, "\n") != p.heard {
		p.t.Errorf("the victim went on: it said %q", said)
	}
}
