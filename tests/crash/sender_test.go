package crash_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// The ways in which a sender sends. pgx sends the BEGIN with the first statement of a
// transaction: the record in the early way, the INSERT of the order otherwise. Until the COMMIT all
// moments are the same to a database: a transaction is open, and its client dies.
var (
	everywhere = way{"plainly", brief{Role: aSender, Carry: sender.CarryNever}, kinds}
	plainly    = way{"plainly", everywhere.brief, onPostgres}
	early      = way{"early", brief{Role: aSender, Carry: sender.CarryNever, Early: true}, onPostgres}
	byPgx      = way{"by pgx", brief{Role: aSender, Carry: sender.CarryNever, Pgx: true}, onPostgres}
	byPgxEarly = way{"by pgx, early", brief{Role: aSender, Carry: sender.CarryNever, Pgx: true, Early: true}, onPostgres}
)

type way struct {
	name  string
	brief brief
	kinds []stage.Database
}

// Each sender commits a first order and is killed at its second. The first order's message must
// arrive in any case.
func TestASenderIsKilled(t *testing.T) {
	for _, m := range []moment{
		{when: "after the record: nothing is sent", ways: []way{everywhere, early, byPgx, byPgxEarly}, at: recorded, staged: 1},
		{when: "between the early publish and the other statement: it has rolled back", ways: []way{early, byPgxEarly}, at: begun, staged: 2},
		{when: "before the confirm: it has rolled back", ways: []way{plainly, early, byPgx, byPgxEarly}, deafAfter: ready, noBroker: true, at: staged, staged: 2},
		{when: "between confirm and COMMIT: it has rolled back", ways: []way{plainly, early}, at: staged, staged: 2},
		// The sender has not received the answer.
		{when: "before the answer to its COMMIT: it has committed", ways: []way{
			{plainly.name, plainly.brief, []stage.Database{stage.Postgres, stage.SQLServer}}, byPgx,
		}, deafAfter: recorded, at: placed, staged: 2, committed: true},
		{when: "after the commit", ways: []way{everywhere, early, byPgx, byPgxEarly}, at: placed, staged: 2, committed: true},
	} {
		for _, way := range m.ways {
			t.Run(m.when+", "+way.name, func(t *testing.T) {
				on(t, way.kinds, func(w *world) { m.kill(w, way.brief) })
			})
		}
	}
}

// moment is the moment at which a sender is killed.
type moment struct {
	when      string
	ways      []way
	at        point // where it stops to be killed, unless deafAfter is set
	deafAfter point // from here on it receives no reply, so it must not reach at
	noBroker  bool  // no reply of the broker; otherwise of the database
	staged    int   // messages staged by then, the first order's included
	committed bool
}

func (m moment) kill(w *world, b brief) {
	id := newIDs(1)[0]
	b.Orders, b.Stops = []uuid.UUID{id}, map[point]uuid.UUID{m.at: id}
	var p *process
	if m.deafAfter == "" {
		p = w.start(b)
		p.Says(m.at)
	} else {
		b.Stops[m.deafAfter] = id
		link, server := &b.DatabaseURL, w.DatabaseURL
		if m.noBroker {
			link, server = &b.AMQP, w.AMQP
		}
		var valve *servertest.Valve
		valve, *link = servertest.Through(w.t, server)
		p = w.start(b)
		p.Says(m.deafAfter)
		valve.HoldReplies()
		p.Tell("go on")
	}
	w.WaitDepth(w.Topology.Queue, m.staged)
	before, after, forwarded, dropped := driver.StillOpen, driver.RolledBack, int64(1), int64(m.staged-1)
	if m.committed {
		before, after, forwarded, dropped = driver.Committed, driver.Committed, 2, 0
	}
	w.wantOutcome(id, before)
	p.KillThere()
	w.wantOutcome(id, after)
	w.wantHandedBack(m.staged)
	w.wantStats(w.finish(), forwarded, dropped)
	w.wantOnce()
}

// When the sender dies, a verifier has all messages and is waiting.
func TestManyMessagesOfAKilledSenderAreDropped(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		const n = 1000 // many times the number of settlers
		ids := newIDs(n)
		v := w.Verify(verifier.Options{Patience: time.Hour}) // no message is set aside
		p := w.start(brief{Role: aSender, Carry: sender.CarryNever, Orders: ids, Stops: map[point]uuid.UUID{staged: ids[0]}})
		p.Says(staged)
		w.Eventually("the verifier has taken all", func() bool {
			return w.Depth(w.Topology.Queue) == 0 && w.Depth(w.Topology.WaitingQueue()) == 0
		})
		if dropped := v.Stats().Dropped; dropped != 0 {
			w.t.Errorf("%d dropped while the transaction is open", dropped)
		}
		killed := time.Now()
		p.KillThere()
		w.Eventually("all are dropped, and the sender's first is forwarded", func() bool {
			got := v.Stats()
			return got.Dropped >= n && got.Forwarded >= 1
		})
		w.t.Logf("dropped %d messages %v after the kill", n, time.Since(killed).Round(time.Millisecond))
		v.Stop()
		w.wantStats(v.Stats(), 1, n)
		// If the broker loses acks at the end, their messages come again, at most once.
		if again := w.finish(); again.Forwarded != 0 || again.Dropped > n+1 {
			w.t.Errorf("after the end %d were forwarded, and %d of %d dropped again", again.Forwarded, again.Dropped, n+1)
		}
		w.wantOnce()
	})
}
