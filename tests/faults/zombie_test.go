package faults

import (
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// The old primary comes back while its address is among those of the verifiers: some of their
// connections lead to it, where the senders commit nothing.
func TestAVerifierBelievesNoServerThatItsProofDidNotCover(t *testing.T) {
	t.Parallel()
	p := postgresPair(t)
	p.progress("before the failover")
	p.failOver()
	p.progress("after the failover")
	p.Must("restart the old primary", p.primary.Restart(t.Context()))
	// Sessions that were proven on the new primary alone, with the few connections that the proof
	// needs, open more of them when the traffic comes.
	for _, sender := range p.Senders {
		sender.Freeze()
	}
	var refusals []<-chan string
	for _, v := range p.Verifiers {
		v.Kill()
		v.Database.Lead(p.replica.Addr())
		v.Start()
		servertest.Next(t, "a session on the new primary", v.Await("session started"))
		refusals = append(refusals, v.Await("the proof covers"))
		v.Database.Lead(p.replica.Addr(), p.primary.Addr())
	}
	for _, sender := range p.Senders {
		sender.Thaw()
	}
	for _, refused := range refusals {
		servertest.Next(t, "an answer of the old primary ends the session", refused)
	}
	world.Rest(t.Context(), 3*time.Second)
	for _, v := range p.Verifiers {
		v.Database.Lead(p.replica.Addr())
	}
	p.progress("when the old primary is gone")
	p.End(0)
}
