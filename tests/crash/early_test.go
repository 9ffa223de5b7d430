package crash_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// The moments of a sender that stages early, before the transaction's other statements.

func TestASenderKilledAfterItsEarlyRecordHasSentNothing(t *testing.T) {
	onEach(t, func(w *world) {
		id := newIDs(1)[0]
		p := w.start(brief{Role: aSender, Early: true, Orders: []uuid.UUID{id}, Stops: map[point]uuid.UUID{recorded: id}})
		p.reached(recorded)
		w.wantOutcome(id, driver.StillOpen)
		p.kill()
		w.wantOutcome(id, driver.RolledBack)
		w.wantHandedBack(1)
		w.wantStats(w.finish(), 1, 0)
		w.wantOnce()
	})
}

func TestASenderKilledAfterItsEarlyPublishHasRolledBack(t *testing.T) {
	onEach(t, func(w *world) {
		id := newIDs(1)[0]
		p := w.start(brief{Role: aSender, Early: true, Orders: []uuid.UUID{id}, Stops: map[point]uuid.UUID{begun: id}})
		p.reached(begun)
		w.WaitDepth(w.Topology.Queue, 2)
		w.wantOutcome(id, driver.StillOpen)
		p.kill()
		w.wantOutcome(id, driver.RolledBack)
		w.wantHandedBack(2)
		w.wantStats(w.finish(), 1, 1)
		w.wantOnce()
	})
}

// All its statements are done, and only the confirm is missing.
func TestASenderKilledWhileItWaitsForTheEarlyConfirmHasRolledBack(t *testing.T) {
	onEach(t, func(w *world) {
		id := newIDs(1)[0]
		valve, address := servertest.Through(w.t, w.AMQP)
		p := w.start(brief{Role: aSender, Early: true, AMQP: address, Orders: []uuid.UUID{id},
			Stops: map[point]uuid.UUID{ready: id, begun: id, staged: id}})
		p.reached(ready)
		valve.HoldReplies()
		p.goOn()
		p.reached(begun)
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

func TestASenderKilledBetweenTheEarlyConfirmAndCommitHasRolledBack(t *testing.T) {
	onEach(t, func(w *world) {
		id := newIDs(1)[0]
		p := w.start(brief{Role: aSender, Early: true, Orders: []uuid.UUID{id}, Stops: map[point]uuid.UUID{staged: id}})
		p.reached(staged)
		w.wantOutcome(id, driver.StillOpen)
		p.kill()
		w.wantOutcome(id, driver.RolledBack)
		w.wantHandedBack(2)
		w.wantStats(w.finish(), 1, 1)
		w.wantOnce()
	})
}

func TestWhatASenderStagedEarlyAndCommittedBeforeItWasKilledIsForwarded(t *testing.T) {
	onEach(t, func(w *world) {
		id := newIDs(1)[0]
		p := w.start(brief{Role: aSender, Early: true, Orders: []uuid.UUID{id}, Stops: map[point]uuid.UUID{placed: id}})
		p.reached(placed)
		p.kill()
		w.wantOutcome(id, driver.Committed)
		w.wantHandedBack(2)
		w.wantStats(w.finish(), 2, 0)
		w.wantOnce()
	})
}
