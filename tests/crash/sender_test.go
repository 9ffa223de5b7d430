package crash_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// The ways in which a sender sends. By pgx the first statement of a transaction takes the
// BEGIN along: it records early, or inserts the order.
var (
	plainly    = way{"plainly", brief{Role: aSender}, kinds}
	early      = way{"early", brief{Role: aSender, Early: true}, onPostgres}
	byPgx      = way{"by pgx", brief{Role: aSender, Pgx: true}, onPostgres}
	byPgxEarly = way{"by pgx, early", brief{Role: aSender, Pgx: true, Early: true}, onPostgres}
	allWays    = []way{plainly, early, byPgx, byPgxEarly}
)

type way struct {
	name  string
	brief brief
	kinds []stage.Database
}

// Each victim commits a first order, and is killed at its second. The first one must arrive
// in any case.
func TestASenderIsKilled(t *testing.T) {
	for _, moment := range []struct {
		when string
		ways []way
		kill func(w *world, id uuid.UUID, b brief)
	}{
		{"after the record: nothing is sent", allWays, killedAfterRecord},
		{"between the early publish and the other statement: it has rolled back", []way{early, byPgxEarly}, killedBetween},
		{"before the confirm: it has rolled back", allWays, killedBeforeConfirm},
		{"between confirm and COMMIT: it has rolled back", []way{plainly, early}, killedBeforeCommit},
		{"before the answer to its COMMIT: it has committed", []way{
			{plainly.name, plainly.brief, []stage.Database{stage.Postgres, stage.SQLServer}}, byPgx,
		}, killedBeforeAnswer},
		{"after the commit", allWays, killedAfterCommit},
	} {
		for _, way := range moment.ways {
			t.Run(moment.when+", "+way.name, func(t *testing.T) {
				on(t, way.kinds, func(w *world) {
					b, id := way.brief, newIDs(1)[0]
					b.Orders, b.Stops = []uuid.UUID{id}, map[point]uuid.UUID{}
					moment.kill(w, id, b)
					w.wantOnce()
				})
			})
		}
	}
}

func killedAfterRecord(w *world, id uuid.UUID, b brief) {
	b.Stops[recorded] = id
	p := w.start(b)
	p.reached(recorded)
	w.wantOutcome(id, driver.StillOpen)
	p.kill()
	w.wantRolledBack(id, 1)
}

func killedBetween(w *world, id uuid.UUID, b brief) {
	b.Stops[begun] = id
	p := w.start(b)
	p.reached(begun)
	w.WaitDepth(w.Topology.Queue, 2)
	w.wantOutcome(id, driver.StillOpen)
	p.kill()
	w.wantRolledBack(id, 2)
}

func killedBeforeConfirm(w *world, id uuid.UUID, b brief) {
	valve, address := servertest.Through(w.t, w.AMQP)
	b.AMQP, b.Stops[ready], b.Stops[staged] = address, id, id
	p := w.start(b)
	p.reached(ready)
	valve.HoldReplies()
	p.goOn()
	w.WaitDepth(w.Topology.Queue, 2)
	w.wantOutcome(id, driver.StillOpen)
	p.kill()
	w.wantRolledBack(id, 2)
}

func killedBeforeCommit(w *world, id uuid.UUID, b brief) {
	b.Stops[staged] = id
	p := w.start(b)
	p.reached(staged)
	w.wantOutcome(id, driver.StillOpen)
	p.kill()
	w.wantRolledBack(id, 2)
}

// The COMMIT's answer never reaches the sender: it does not know itself.
func killedBeforeAnswer(w *world, id uuid.UUID, b brief) {
	valve, address := servertest.Through(w.t, w.DatabaseURL)
	b.DatabaseURL, b.Stops[recorded], b.Stops[placed] = address, id, id
	p := w.start(b)
	p.reached(recorded)
	valve.HoldReplies()
	p.goOn()
	w.wantOutcome(id, driver.Committed)
	p.kill()
	w.wantForwarded(id)
}

func killedAfterCommit(w *world, id uuid.UUID, b brief) {
	b.Stops[placed] = id
	p := w.start(b)
	p.reached(placed)
	p.kill()
	w.wantForwarded(id)
}

// wantRolledBack checks that the sender's second transaction has rolled back, after so many
// messages were staged by both.
func (w *world) wantRolledBack(id uuid.UUID, staged int) {
	w.t.Helper()
	w.wantOutcome(id, driver.RolledBack)
	w.wantHandedBack(staged)
	w.wantStats(w.finish(), 1, int64(staged-1))
}

func (w *world) wantForwarded(id uuid.UUID) {
	w.t.Helper()
	w.wantOutcome(id, driver.Committed)
	w.wantHandedBack(2)
	w.wantStats(w.finish(), 2, 0)
}

// A verifier has taken all of them, and waits, when the sender dies.
func TestManyMessagesOfAKilledSenderAreDropped(t *testing.T) {
	onEach(t, func(w *world) {
		n := scaled(100)
		if w.Kind.Name == stage.Postgres.Name {
			n = 1000 // many times as many as are settled at a time
		}
		ids := newIDs(n)
		v := w.Verify(verifier.Options{Patience: time.Hour}) // none is set aside
		p := w.start(brief{Role: aSender, Orders: ids, Stops: map[point]uuid.UUID{staged: ids[0]}})
		p.reached(staged)
		w.Eventually("the verifier has taken all", func() bool {
			return w.Depth(w.Topology.Queue) == 0 && w.Depth(w.Topology.WaitingQueue()) == 0
		})
		if n := v.Stats().Dropped; n != 0 {
			w.t.Errorf("%d dropped while the transaction is open", n)
		}
		killed := time.Now()
		p.kill()
		w.Eventually("all are dropped, and the sender's first is forwarded", func() bool {
			got := v.Stats()
			return got.Dropped >= int64(n) && got.Forwarded >= 1
		})
		w.t.Logf("dropped %d messages %v after the kill", n, time.Since(killed).Round(time.Millisecond))
		v.Stop()
		w.wantStats(v.Stats(), 1, int64(n))
		if again := w.finish(); again != (verifier.Stats{}) {
			w.t.Logf("acks lost: %d dropped again", again.Dropped)
			w.wantStats(again, 0, again.Dropped)
		}
		w.wantOnce()
	})
}
