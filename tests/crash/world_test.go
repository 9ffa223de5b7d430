package crash_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// world is a stage with a shop's table and a target queue.
type world struct {
	*stage.Stage
	t      *testing.T
	target string
}

func newWorld(t *testing.T, s *stage.Stage) *world {
	t.Helper()
	w := &world{Stage: s, t: t, target: s.Queue("target of "+s.Topology.Queue, nil)}
	_, err := s.DB.ExecContext(t.Context(), ordersTable)
	w.must("create table", err)
	return w
}

// kinds are the databases on which processes are killed.
var kinds = append(slices.Clip(stage.Everywhere), stage.MariaDB)

// onPostgres is for moments whose consequences the broker alone decides, or at which a database
// does nothing that other moments do not show.
var onPostgres = []stage.Database{stage.Postgres}

func onEach(t *testing.T, test func(w *world)) { on(t, kinds, test) }

func on(t *testing.T, kinds []stage.Database, test func(w *world)) {
	t.Parallel()
	if testing.Short() {
		kinds = kinds[:1]
	}
	for _, kind := range kinds {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			test(newWorld(t, stage.New(t, kind)))
		})
	}
}

func (w *world) must(what string, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

// commit places orders and commits.
func (w *world) commit(ids ...uuid.UUID) {
	w.t.Helper()
	tx, err := place(w.t.Context(), w.DB, w.Sender, w.target, ids...)
	w.must("place orders", err)
	w.must("commit", tx.Commit())
}

// wantOutcome settles a message and compares the outcome.
func (w *world) wantOutcome(id uuid.UUID, want driver.Outcome) {
	w.t.Helper()
	wait := stage.Patience
	if want == driver.StillOpen {
		wait = 200 * time.Millisecond
	}
	outcome, _, err := w.Ledger.Settle(w.t.Context(), id, wait)
	w.must("settle", err)
	if outcome != want {
		w.t.Fatalf("the transaction of %s is %v, not %v", id, outcome, want)
	}
}

func (w *world) wantHandedBack(want int) {
	w.t.Helper()
	if n := w.HandedBack(w.t); n != want {
		w.t.Fatalf("%d messages are staged, not %d", n, want)
	}
}

// finish has new verifiers judge the remaining messages, and returns their work.
func (w *world) finish() (total verifier.Stats) {
	w.t.Helper()
	w.Finish(w.t, func(left int) {
		v := w.Verify(verifier.Options{})
		w.Evidence()
		w.Eventually("all messages left are judged", func() bool {
			stats := v.Stats()
			return stats.Forwarded+stats.Dropped+stats.DeadLettered > int64(left)
		})
		v.Stop()
		total.Forwarded += v.Stats().Forwarded - 1 // minus the evidence
		total.Dropped += v.Stats().Dropped
	})
	return total
}

func (w *world) wantStats(got verifier.Stats, forwarded, dropped int64) {
	w.t.Helper()
	if got.Forwarded != forwarded || got.Dropped != dropped {
		w.t.Errorf("the verifier forwarded %d and dropped %d, not %d and %d", got.Forwarded, got.Dropped, forwarded, dropped)
	}
}

// check tests the rules after the last verifier has stopped: every committed order's message has
// been delivered, unchanged; no other has; the queues are empty. It returns the orders that were
// delivered more than once and the rows that are left in the ledger.
func (w *world) check() (twice map[uuid.UUID]int, rows []uuid.UUID) {
	w.t.Helper()
	w.WantNothingLeft(w.t)
	committed := make(map[uuid.UUID]bool)
	for _, id := range w.IDs(w.t, `SELECT id FROM orders`) {
		committed[id] = true
	}
	if len(committed) == 0 {
		w.t.Error("no order was committed: nothing is shown")
	}
	copies, _ := w.Delivered(w.t, w.target, isMessage)
	return stage.Compare(w.t, committed, copies), w.IDs(w.t, `SELECT id FROM bridge_ledger`)
}

// wantAtMost fails the test if a message was delivered more than most times.
func (w *world) wantAtMost(most int, twice map[uuid.UUID]int) {
	w.t.Helper()
	for id, n := range twice {
		if n > most {
			w.t.Errorf("order %s was delivered %d times, and no more than %d are explained", id, n, most)
		}
	}
}

// wantOnce is check for tests in which no message may come twice and no row may stay.
func (w *world) wantOnce() {
	w.t.Helper()
	w.wantCheck(nil, nil)
}

// wantCheck is check for tests that determine which messages come twice and which rows stay.
func (w *world) wantCheck(twice, orphans []uuid.UUID) {
	w.t.Helper()
	gotTwice, rows := w.check()
	if len(gotTwice) != len(twice) || slices.ContainsFunc(twice, func(id uuid.UUID) bool { return gotTwice[id] != 2 }) {
		w.t.Errorf("delivered more than once: %v, want these twice: %v", gotTwice, twice)
	}
	slices.SortFunc(rows, compareIDs)
	slices.SortFunc(orphans, compareIDs)
	if !slices.Equal(rows, orphans) {
		w.t.Errorf("rows left in the ledger: %v, want %v", rows, orphans)
	}
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }
