package crash_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/verifier"
)

// The table of crashes in package bridge, for messages that are parked. The victim's first
// order is parked too, and arrives in any case.

func TestASenderKilledBetweenParkAndCommitHasParkedNothing(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		id := newIDs(1)[0]
		p := w.start(brief{Role: aSender, Parking: sender.ParkAlways, Orders: []uuid.UUID{id},
			Stops: map[point]uuid.UUID{staged: id}})
		p.reached(staged)
		w.wantOutcome(id, driver.StillOpen)
		p.kill()
		w.wantOutcome(id, driver.RolledBack)
		w.wantParked(1)
		w.wantHandedBack(0)
		w.unpark()
		w.wantOnce()
	})
}

func TestWhatASenderParkedAndCommittedBeforeItWasKilledIsForwarded(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		id := newIDs(1)[0]
		w.killAt(placed, brief{Role: aSender, Parking: sender.ParkAlways, Orders: []uuid.UUID{id},
			Stops: map[point]uuid.UUID{placed: id}})
		w.wantParked(2)
		w.unpark()
		w.wantOnce()
	})
}

// The staging queue has it and the database too: it may come twice, with one ID.
func TestAVerifierKilledBetweenStagingAndUnparkingLosesNothing(t *testing.T) {
	onEach(t, func(w *world) {
		w.killWhileUnparking(restaged)
		w.wantParked(1)
		w.wantHandedBack(1)
		w.unpark()
		w.wantOnceOrTwice()
	})
}

func TestAVerifierKilledAfterUnparkingLosesNothing(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		w.killWhileUnparking(unparked)
		w.wantParked(0)
		w.wantHandedBack(1)
		w.wantStats(w.finish(), 1, 0)
		w.wantOnce()
	})
}

// killWhileUnparking kills a verifier at a point of the unparking of a message.
func (w *world) killWhileUnparking(at point) {
	w.t.Helper()
	id := newIDs(1)[0]
	w.park(id)
	p := w.start(brief{Role: aVerifier, Stops: map[point]uuid.UUID{at: id, lookedUp: id, settles: id}})
	for range 2 { // the lookup may come first
		p.reached(at, lookedUp, settles)
	}
	p.KillRunning()
}

// park parks orders in a transaction that commits.
func (w *world) park(ids ...uuid.UUID) {
	w.t.Helper()
	outbox, err := sender.New(w.Ledger, nil, &sender.Options{Queue: w.Topology.Queue, Parking: sender.ParkAlways})
	w.must("new sender", err)
	tx, err := place(w.t.Context(), w.DB, outbox, w.target, ids...)
	w.must("place orders", err)
	w.must("commit", tx.Commit())
}

// unpark has a verifier stage and judge what is parked.
func (w *world) unpark() {
	w.t.Helper()
	v := w.Verify(verifier.Options{})
	w.Eventually("nothing is parked or recorded", func() bool { return w.parked() == 0 && w.Rows() == 0 })
	v.Stop()
	w.finish()
}

func (w *world) parked() (n int) {
	w.t.Helper()
	w.must("count", w.DB.QueryRowContext(w.t.Context(), `SELECT count(*) FROM bridge_parked`).Scan(&n))
	return n
}

func (w *world) wantParked(want int) {
	w.t.Helper()
	w.Eventually("the dead one's locks are gone", func() bool { return w.parked() == want })
}

// wantOnceOrTwice is check for where one copy more may come of each, and no row may stay.
func (w *world) wantOnceOrTwice() {
	w.t.Helper()
	twice, rows := w.check()
	w.t.Logf("delivered twice: %d", len(twice))
	w.wantAtMost(2, twice)
	if len(rows) != 0 {
		w.t.Errorf("rows left in the ledger: %v", rows)
	}
}
