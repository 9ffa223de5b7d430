package crash_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// shop returns the brief of a shop. SQLite has one writer at a time, and two tills that write
// without a break would starve the verifiers.
func shop(kind stage.Database) brief {
	tills := 2
	if kind.Name == stage.SQLite.Name {
		tills = 1
	}
	return brief{Role: aShop, Carry: sender.CarryNever, Tills: tills}
}

// Two verifiers and a shop run at the same time on SQLite, which has one writer at a time. In turn
// they are killed and replaced, each time after some more messages have arrived. tests/faults does
// that on PostgreSQL and MariaDB.
func TestProcessesKilledAtRandomMomentsLoseAndInventNothing(t *testing.T) {
	kills, step := scaled(6), 150 // each victim dies twice
	if testing.Short() {
		kills = 3
	}
	on(t, []stage.Database{stage.SQLite}, func(w *world) {
		for range 3 { // so that hundreds are in flight at the first kill
			w.commit(newIDs(100)...)
		}
		// Some transactions are slower than this patience, so their messages are set aside.
		impatient := brief{Role: aVerifier, Options: verifier.Options{Patience: 50 * time.Millisecond}}
		briefs := []brief{impatient, impatient, shop(w.Kind)}
		var victims []*process
		for _, b := range briefs {
			victims = append(victims, w.start(b))
		}
		arrived, ends := 0, 2 // ends of verifier sessions: the last two are killed too
		for i := range kills {
			arrived += 1 + rand.IntN(step)
			w.waitArrived(arrived)
			which := i % len(victims)
			victims[which].KillThere()
			if briefs[which].Role == aVerifier {
				ends++
			}
			victims[which] = w.start(briefs[which])
		}
		for _, victim := range victims {
			victim.KillThere()
		}
		stats := w.finish()
		w.t.Logf("left for the last verifier: %d to forward, %d to drop", stats.Forwarded, stats.Dropped)
		w.wantNothingLost(ends)
	})
}

// waitArrived waits until the target holds n messages. The target has no consumer.
func (w *world) waitArrived(n int) {
	w.t.Helper()
	w.Eventually("more has arrived", func() bool { return w.Depth(w.target) >= n })
}

// wantNothingLost is check for tests in which verifiers died with unacked messages. Rows of
// interrupted proofs may stay, but no row of an order. SQLite is an exception: every writer locks
// the whole file, so a killed verifier may leave rows of messages that it had acked. Those rows
// are orphans, since check has found their messages delivered.
func (w *world) wantNothingLost(ends int) {
	w.t.Helper()
	twice, rows := w.check()
	w.wantAtMost(1<<min(ends, 10), twice) // each end may double a message that was forwarded or set aside, and not acked
	orders := w.IDs(w.t, `SELECT id FROM orders`)
	w.t.Logf("%d orders committed, %d delivered more than once, %d rows left", len(orders), len(twice), len(rows))
	for _, id := range orders {
		if slices.Contains(rows, id) && w.Kind.Name != stage.SQLite.Name {
			w.t.Errorf("the row of order %s was left in the ledger", id)
		}
	}
}
