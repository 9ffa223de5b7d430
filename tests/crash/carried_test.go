package crash_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/verifier"
)

// These tests are the crash table of package bridge for carried messages. The sender's first
// order is carried too and arrives in any case.

func carrying(at point, id uuid.UUID) brief {
	return brief{Role: aSender, Carry: sender.CarryAlways, Orders: []uuid.UUID{id}, Stops: map[point]uuid.UUID{at: id}}
}

func TestASenderKilledBeforeItsCommitHasCarriedNothing(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		for _, at := range []point{recorded, staged} {
			id := newIDs(1)[0]
			p := w.start(carrying(at, id))
			p.Says(at)
			w.wantOutcome(id, driver.StillOpen)
			p.KillThere()
			w.wantOutcome(id, driver.RolledBack)
			w.deliverAll()
		}
		w.wantOnce()
	})
}

func TestACarriedMessageCommittedBeforeItsSenderWasKilledIsForwarded(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		id := newIDs(1)[0]
		w.killAt(placed, carrying(placed, id))
		w.wantOutcome(id, driver.Committed)
		w.deliverAll()
		w.wantOnce()
	})
}

// The publication never reaches the broker: the row alone brings the message to its target.
func TestACarriedMessageWhosePublicationWasLostWithItsSenderIsForwarded(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		id := newIDs(1)[0]
		b := carrying(placed, id)
		b.Stops[ready] = id
		var valve *servertest.Valve
		valve, b.AMQP = servertest.Through(w.t, w.AMQP)
		p := w.start(b)
		p.Says(ready)
		w.WaitDepth(w.Topology.Queue, 1)
		valve.Vanish()
		p.Tell("go on")
		p.Says(placed)
		p.KillThere()
		w.wantHandedBack(1)
		w.deliverAll()
		w.wantOnce()
	})
}

// The claim has moved the row's stage time. When that time comes, another verifier stages the
// message.
func TestAVerifierKilledBetweenClaimAndStagingLosesNothing(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		id := newIDs(1)[0]
		w.carryUnpublished(id)
		w.killAt(claimed, brief{Role: aVerifier, Stops: map[point]uuid.UUID{claimed: id}})
		w.wantHandedBack(0)
		w.deliverAll()
		w.wantOnce()
	})
}

// The staging queue has the copy and the ledger has the row: the copy is judged, and no other
// copy is staged.
func TestAVerifierKilledAfterStagingAgainLosesNothing(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		id := newIDs(1)[0]
		w.carryUnpublished(id)
		p := w.start(brief{Role: aVerifier, Stops: map[point]uuid.UUID{asked: id}})
		p.Says(asked)
		p.KillRunning()
		w.wantHandedBack(1)
		w.deliverAll()
		w.wantOnce()
	})
}

// The target has the message, and the row still carries it: one more copy may come.
func TestAVerifierKilledBetweenConfirmAndDeleteOfACarriedRowLosesNothing(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		for _, at := range []point{forgets, forgot} {
			id := newIDs(1)[0]
			w.carryUnpublished(id)
			p := w.start(brief{Role: aVerifier, Stops: map[point]uuid.UUID{at: id}})
			p.Says(at)
			p.KillRunning()
			w.deliverAll()
		}
		w.wantOnceOrTwice()
	})
}

// Until its time a delayed message exists only in its row.
func TestASenderKilledAtADelayedMessageHasSentItIfItHasCommitted(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		for _, at := range []point{recorded, placed} {
			id := newIDs(1)[0]
			b := carrying(at, id)
			b.Carry, b.Delay = sender.CarryNever, time.Second
			w.killAt(at, b)
			w.wantOutcome(id, map[point]driver.Outcome{recorded: driver.RolledBack, placed: driver.Committed}[at])
		}
		w.deliverAll()
		w.wantOnce()
	})
}

// The verifier dies at each step after the message's time has come, on each database. A claim counts
// even if no staging followed: the message can no longer be cancelled.
func TestAVerifierKilledWhileItStagesDelayedMessagesLosesNothing(t *testing.T) {
	onEach(t, func(w *world) {
		for _, at := range []point{claimed, asked, forgets, forgot} {
			id := newIDs(1)[0]
			w.carryDelayed(300*time.Millisecond, id)
			p := w.start(brief{Role: aVerifier, Stops: map[point]uuid.UUID{at: id}})
			p.Says(at)
			p.KillRunning()
			w.wantNotCancelled(id)
		}
		w.deliverAll()
		w.wantOnceOrTwice()
	})
}

// wantNotCancelled fails the test if a message can be cancelled of which a copy may exist.
func (w *world) wantNotCancelled(id uuid.UUID) {
	w.t.Helper()
	tx, err := inTx(w.t.Context(), w.DB, func(tx *sql.Tx) error {
		done, err := w.Ledger.Cancel(w.t.Context(), bridge.SQL(tx), id)
		if done {
			w.t.Errorf("message %s is cancelled although a verifier had claimed it", id)
		}
		return err
	})
	w.must("cancel", err)
	w.must("roll back", tx.Rollback())
}

// carryUnpublished commits orders whose messages are carried and not published.
func (w *world) carryUnpublished(ids ...uuid.UUID) {
	w.t.Helper()
	w.carryUntil(time.Time{}, ids...)
}

// carryDelayed does the same with messages that become due after delay.
func (w *world) carryDelayed(delay time.Duration, ids ...uuid.UUID) {
	w.t.Helper()
	_, now, err := w.Ledger.Due(w.t.Context(), driver.DueRow{}, 1)
	w.must("read the clock", err)
	w.carryUntil(now.Add(delay), ids...)
}

func (w *world) carryUntil(notBefore time.Time, ids ...uuid.UUID) {
	w.t.Helper()
	entries := make([]driver.Entry, len(ids))
	for i, m := range messages(ids, w.target) {
		publishing, err := wire.Encode(m, w.Ledger.Identity())
		w.must("encode", err)
		publishing.Headers[wire.HeaderCarried] = true
		entries[i] = driver.Entry{ID: m.ID, Message: wire.EncodeRecord(publishing), Unpublished: true, NotBefore: notBefore}
	}
	tx, err := inTx(w.t.Context(), w.DB, func(tx *sql.Tx) error {
		if err := insert(w.t.Context(), tx, ids); err != nil {
			return err
		}
		return w.Ledger.Record(w.t.Context(), bridge.SQL(tx), entries)
	})
	w.must("carry orders", err)
	w.must("commit", tx.Commit())
}

// deliverAll runs a verifier until no row is left, and then finishes.
func (w *world) deliverAll() {
	w.t.Helper()
	v := w.Verify(verifier.Options{})
	w.Eventually("no row is left", func() bool { return w.Rows() == 0 })
	v.Stop()
	w.finish()
}

// wantOnceOrTwice is check for tests in which each message may come twice and no row may stay.
func (w *world) wantOnceOrTwice() {
	w.t.Helper()
	twice, rows := w.check()
	w.t.Logf("delivered twice: %d", len(twice))
	w.wantAtMost(2, twice)
	if len(rows) != 0 {
		w.t.Errorf("rows left in the ledger: %v", rows)
	}
}
