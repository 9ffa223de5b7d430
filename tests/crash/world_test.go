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

// A world is a stage with a shop's table and a target queue.
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

// onPostgres is for the moments at which the broker decides what follows, or at which the
// database does what it does at others too.
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

// commit places orders in a transaction that commits.
func (w *world) commit(ids ...uuid.UUID) {
	w.t.Helper()
	tx, err := place(w.t.Context(), w.DB, w.Sender, w.target, ids...)
	w.must("place orders", err)
	w.must("commit", tx.Commit())
}

// wantOutcome asks the ledger what became of a message's transaction.
func (w *world) wantOutcome(id uuid.UUID, want driver.Outcome) {
	w.t.Helper()
	wait := stage.Patience
	if want == driver.StillOpen {
		wait = 200 * time.Millisecond
	}
	outcome, err := w.Ledger.Settle(w.t.Context(), id, wait)
	w.must("settle", err)
	if outcome != want {
		w.t.Fatalf("the transaction of %s is %v, not %v", id, outcome, want)
	}
}

// handedBack waits until no consumer is left at the queues of the topology, which
// have then got back all that was unacked, and returns how many messages the
// staging and the waiting queue hold.
func (w *world) handedBack() (n int) {
	w.t.Helper()
	w.Eventually("no consumer is left", func() bool {
		messages, consumers, err := w.Left()
		w.must("look", err)
		n = messages
		return consumers == 0
	})
	return n
}

func (w *world) wantHandedBack(want int) {
	w.t.Helper()
	if n := w.handedBack(); n != want {
		w.t.Fatalf("%d messages are staged, not %d", n, want)
	}
}

// finish has fresh verifiers judge what is left, and returns what they have done.
// One is enough, but for a broker that loses some acks when the channel of very
// many ends (see the verifier's acks.finish): those messages come once more.
func (w *world) finish() (total verifier.Stats) {
	w.t.Helper()
	const rounds = 12
	for round := 0; w.handedBack() > 0; round++ {
		if round == rounds {
			w.t.Fatalf("messages are handed back again and again: after %d verifiers %d are left", rounds, w.handedBack())
		}
		left := len(w.Staged()) + len(w.Waiting())
		v := w.Verify(verifier.Options{})
		w.Eventually("all that was left is judged", func() bool {
			stats := v.Stats()
			return stats.Forwarded+stats.Dropped+stats.DeadLettered >= int64(left)
		})
		v.Stop()
		total.Forwarded += v.Stats().Forwarded
		total.Dropped += v.Stats().Dropped
	}
	return total
}

func (w *world) wantStats(got verifier.Stats, forwarded, dropped int64) {
	w.t.Helper()
	if got.Forwarded != forwarded || got.Dropped != dropped {
		w.t.Errorf("the verifier forwarded %d and dropped %d, not %d and %d", got.Forwarded, got.Dropped, forwarded, dropped)
	}
}

// check holds the world, after the last verifier has stopped, against the rules:
// every committed order has been delivered, no other has, in the right content,
// and the queues are empty. It returns the orders that were delivered more than
// once and the rows that are left in the ledger.
func (w *world) check() (twice map[uuid.UUID]int, rows []uuid.UUID) {
	w.t.Helper()
	if n := w.handedBack(); n != 0 {
		w.t.Errorf("%d messages are still staged", n)
	}
	if n := w.Depth(w.Topology.DeadQueue()); n != 0 {
		w.t.Errorf("%d messages are in the dead queue", n)
	}
	committed := make(map[uuid.UUID]bool)
	copies := w.delivered()
	for _, id := range w.ids(`SELECT id FROM orders`) {
		committed[id] = true
		if copies[id] == 0 {
			w.t.Errorf("order %s was committed and not delivered", id)
		}
	}
	if len(committed) == 0 {
		w.t.Error("no order was committed: nothing is shown")
	}
	twice = make(map[uuid.UUID]int)
	for id, n := range copies {
		if !committed[id] {
			w.t.Errorf("order %s was delivered and not committed", id)
		}
		if n > 1 {
			twice[id] = n
		}
	}
	return twice, w.ids(`SELECT id FROM bridge_ledger`)
}

// wantAtMost looks at what check has counted.
func (w *world) wantAtMost(most int, twice map[uuid.UUID]int) {
	w.t.Helper()
	for id, n := range twice {
		if n > most {
			w.t.Errorf("order %s was delivered %d times, and no more than %d are explained", id, n, most)
		}
	}
}

// delivered takes everything from the target and counts the copies.
func (w *world) delivered() map[uuid.UUID]int {
	w.t.Helper()
	taken, err := w.Take(w.target)
	w.must("take", err)
	copies := make(map[uuid.UUID]int)
	for _, d := range taken {
		if !isMessage(d) {
			w.t.Errorf("message %q has changed: %q, headers %v", d.MessageId, d.Body, d.Headers)
			continue
		}
		copies[uuid.MustParse(d.MessageId)]++
	}
	return copies
}

func (w *world) ids(query string) []uuid.UUID {
	w.t.Helper()
	ids, err := w.IDs(w.t.Context(), query)
	w.must("read", err)
	return ids
}

// wantOnce is check for where no message may come twice and no row may stay.
func (w *world) wantOnce() {
	w.t.Helper()
	w.wantCheck(nil, nil)
}

// wantCheck is check for where it is known which messages come twice, and which
// rows stay.
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
