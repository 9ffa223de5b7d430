package faults

import (
	"database/sql"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// The old primary comes back while the verifiers' address also leads to it. Some of their
// connections then reach the old primary, where the senders commit nothing.
func TestAVerifierBelievesNoServerThatItsProofDidNotCover(t *testing.T) {
	t.Parallel()
	p := postgresPair(t)
	p.progress("before the failover")
	p.failOver()
	p.progress("after the failover")
	p.Must("restart the old primary", p.primary.Restart(t.Context()))
	// The sessions are proven on the new primary alone, with the few connections that the proof
	// needs. They open more connections when the traffic comes.
	for _, sender := range p.Senders {
		sender.Freeze()
	}
	var refusals []<-chan string
	since := time.Now()
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
	p.Elsewhere(since)
	p.progress("when the old primary is gone")
	p.End(0)
}

// A verifier starts on an old primary that accepts writes, since it waits for no standby. The
// verifier's proof succeeds there, while the senders commit on the new primary.
func TestAVerifierThatStartsOnAnOldPrimaryDropsNothing(t *testing.T) {
	t.Parallel()
	p := postgresPair(t)
	p.progress("before the failover")
	p.failOver()
	p.progress("after the failover")
	p.Must("restart the old primary", p.primary.Restart(t.Context()))
	old, err := sql.Open("pgx", p.primary.(*servers.Postgres).URL())
	p.Must("open the old primary", err)
	defer old.Close()
	for _, statement := range []string{`ALTER SYSTEM SET synchronous_standby_names = ''`, `SELECT pg_reload_conf()`} {
		_, err := old.ExecContext(t.Context(), statement)
		p.Must("have the old primary wait for no standby", err)
	}
	since := time.Now()
	for _, v := range p.Verifiers {
		v.Kill()
		v.Database.Lead(p.primary.Addr())
		v.Start()
		servertest.Next(t, "a session on the old primary", v.Await("session started"))
	}
	world.Rest(t.Context(), 3*time.Second)
	for _, v := range p.Verifiers {
		v.Kill()
		v.Database.Lead(p.replica.Addr())
		v.Start()
	}
	p.Elsewhere(since)
	p.progress("when the old primary is gone")
	p.End(0)
}
