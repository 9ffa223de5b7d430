package faults

import (
	"context"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A pair is a world whose senders' database is a primary with a replica. Clients know one
// address, that of a valve, which leads to the primary.
type pair struct {
	*world.World
	t       *testing.T
	address *servertest.Valve
	primary replicated
	replica replicated
}

// replicated is a server of a pair.
type replicated interface {
	world.DatabaseServer
	Addr() string
}

// promoted is a replica that can become the primary.
type promoted interface{ Promote(context.Context) error }

// newPair makes a world with traffic on a pair whose shop is that URL.
func newPair(t *testing.T, diary *world.Diary, primary, replica replicated, shop string) *pair {
	t.Helper()
	valve, through := servertest.Through(t, shop)
	w := world.New(t, world.Config{
		Diary:    diary,
		AMQP:     servertest.Vhost(t),
		Shop:     through,
		Post:     servertest.PostgresDB(t),
		Topology: bridge.Topology{Queue: "staging"},
		Pause:    50 * time.Millisecond,
	})
	for i := range 2 {
		w.AddSender(4, uint64(i))
		w.AddVerifier()
	}
	w.AddReceiver()
	return &pair{w, t, valve, primary, replica}
}

// progress waits until some more messages have had their effect.
func (p *pair) progress(when string) {
	p.t.Helper()
	const some = 150
	before := -1
	if err := p.AwaitCount("messages arrive "+when, p.Post(), `SELECT count(*) FROM effects`, func(n int) bool {
		if before < 0 {
			before = n
		}
		return n >= before+some
	}); err != nil {
		p.t.Fatalf("%s\nwait: %v", p.Explain(), err)
	}
}

// failOver kills the primary and promotes the replica, to which all clients are then led.
func (p *pair) failOver() {
	p.t.Helper()
	p.Diary.Note("the primary is killed, and its replica promoted")
	p.primary.Kill()
	p.DatabaseKilled()
	p.Must("promote", p.replica.(promoted).Promote(p.t.Context()))
	p.address.Lead(p.replica.Addr())
}

// postgresPair is a pair that replicates synchronously.
func postgresPair(t *testing.T) *pair {
	t.Helper()
	if testing.Short() {
		t.Skip("kills servers")
	}
	diary := world.NewDiary(t, *diariesFlag)
	primary := servertest.StartPostgres(t, &servers.PostgresOptions{Log: diary.Page("primary"), Config: []string{"synchronous_standby_names = '*'"}})
	standby := servertest.StartStandby(t, primary, &servers.PostgresOptions{Log: diary.Page("standby")})
	return newPair(t, diary, primary, standby, primary.URL())
}

func TestAFailoverOfASynchronousPostgreSQLLosesAndInventsNothing(t *testing.T) {
	t.Parallel()
	p := postgresPair(t)
	p.progress("before the failover")
	p.failOver()
	p.progress("after the failover")
	p.End(0)
}
