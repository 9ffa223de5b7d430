package crash_test

import (
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// process is a victim, seen from its parent.
type process = program.Dialogue

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
	return program.StartDialogue(w.t, servertest.Again(w.t, briefVariable, b))
}

// killAt starts a victim and kills it when it has reached a point.
func (w *world) killAt(at point, b brief) {
	w.t.Helper()
	p := w.start(b)
	p.Says(at)
	p.KillThere()
}
