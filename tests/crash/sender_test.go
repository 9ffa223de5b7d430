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

// Each victim commits a first order, and is killed at its second. The first one
// must arrive in any case.

func TestASenderKilledAfterRecordBeforePublishHasSentNothing(t *testing.T) {
	onEach(t, func(w *world) {
		id := newIDs(1)[0]
		p := w.start(brief{Role: aSender, Orders: []uuid.UUID{id}, Stops: map[point]uuid.UUID{recorded: id}})
		p.reached(recorded)
		w.wantOutcome(id, driver.StillOpen)
		p.kill()
		w.wantOutcome(id, driver.RolledBack)
		w.wantHandedBack(1)
		w.wantStats(w.finish(), 1, 0)
		w.wantOnce()
	})
}

func TestASenderKilledBetweenPublishAndConfirmHasRolledBack(t *testing.T) {
	onEach(t, func(w *world) {
		id := newIDs(1)[0]
		valve, address := servertest.Through(w.t, w.AMQP)
		p := w.start(brief{Role: aSender, AMQP: address, Orders: []uuid.UUID{id},
			Stops: map[point]uuid.UUID{ready: id, staged: id}})
		p.reached(ready)
		valve.HoldReplies()
		p.goOn()
		w.WaitDepth(w.Topology.Queue, 2)
		w.wantOutcome(id, driver.StillOpen)
		p.kill()
		w.wantOutcome(id, driver.RolledBack)
		w.wantHandedBack(2)
		w.wantStats(w.finish(), 1, 1)
		w.wantOnce()
	})
}

func TestASenderKilledBetweenConfirmAndCommitHasRolledBack(t *testing.T) {
	onEach(t, func(w *world) {
		id := newIDs(1)[0]
		p := w.start(brief{Role: aSender, Orders: []uuid.UUID{id}, Stops: map[point]uuid.UUID{staged: id}})
		p.reached(staged)
		w.wantOutcome(id, driver.StillOpen)
		p.kill()
		w.wantOutcome(id, driver.RolledBack)
		w.wantHandedBack(2)
		w.wantStats(w.finish(), 1, 1)
		w.wantOnce()
	})
}

func TestWhatASenderCommittedBeforeItWasKilledIsForwarded(t *testing.T) {
	onEach(t, func(w *world) {
		id := newIDs(1)[0]
		p := w.start(brief{Role: aSender, Orders: []uuid.UUID{id}, Stops: map[point]uuid.UUID{placed: id}})
		p.reached(placed)
		p.kill()
		w.wantOutcome(id, driver.Committed)
		w.wantHandedBack(2)
		w.wantStats(w.finish(), 2, 0)
		w.wantOnce()
	})
}

// The COMMIT's answer never reaches the sender: it does not know itself.
func TestWhatASenderCommittedWithoutKnowingItIsForwarded(t *testing.T) {
	on(t, []stage.Database{stage.Postgres, stage.SQLServer}, func(w *world) {
		id := newIDs(1)[0]
		valve, address := servertest.Through(w.t, w.DatabaseURL)
		p := w.start(brief{Role: aSender, DatabaseURL: address, Orders: []uuid.UUID{id},
			Stops: map[point]uuid.UUID{staged: id, placed: id}})
		p.reached(staged)
		valve.HoldReplies()
		p.goOn()
		w.wantOutcome(id, driver.Committed)
		p.kill()
		w.wantHandedBack(2)
		w.wantStats(w.finish(), 2, 0)
		w.wantOnce()
	})
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
