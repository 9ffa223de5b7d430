package crash_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier"
)

// The verifier dies after it has forwarded and deleted one message of a group, while the other
// message's transaction is open.
func TestAGroupOfAVerifierKilledBeforeItsLastMemberEndsDeliversEachMemberOnce(t *testing.T) {
	on(t, onPostgres, func(w *world) {
		done, open := newIDs(1)[0], newIDs(1)[0]
		w.commit(done)
		tx, err := place(w.t.Context(), w.DB, w.Sender, w.target, open)
		w.must("place order", err)
		w.regroup(2)
		w.killAt(forgot, brief{Role: aVerifier, Stops: map[point]uuid.UUID{forgot: done},
			Options: verifier.Options{Patience: time.Hour}}) // the open one is not set aside
		w.must("commit", tx.Commit())
		w.wantHandedBack(1)
		w.wantStats(w.finish(), 1, 1)
		w.wantOnce()
	})
}

// regroup takes n messages out of the staging queue and stages them as one group.
func (w *world) regroup(n int) {
	w.t.Helper()
	var records [][]byte
	for _, d := range w.Receive(w.Topology.Queue, n) {
		staged, err := wire.Parse(d)
		w.must("parse", err)
		records = append(records, wire.EncodeRecord(staged.Publishing()))
	}
	group := wire.Group(w.Ledger.Identity(), records...)
	w.must("publish", w.Broker.Publish(w.t.Context(), []bridge.Outgoing{{
		Target: bridge.Target{RoutingKey: w.Topology.Queue}, Publishing: group,
	}}))
}
