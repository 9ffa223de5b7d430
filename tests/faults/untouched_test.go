package faults

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/verifier"
)

// While another client has locked rows of the ledger, and a queue beside the exchange's own is
// full, more messages than a verifier holds at a time reach the other targets. Both faults last
// until all of these have arrived.
func TestUntouchedMessagesArriveWhileOthersAreHeld(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(*world.Config) {})
	s.AddReceiver()
	var locked []parts.Transaction
	for range 10 {
		locked = append(locked, orders(1, world.Classic))
	}
	s.commit(locked...) // no verifier deletes their rows yet
	s.Must("fill queue", s.FillBeside())

	rows, err := s.LockRows(t.Context(), func() {
		s.verifier = s.AddVerifier(func(o *verifier.Options) {
			o.Patience, o.Unroutable, o.Prefetch = time.Minute, time.Minute, prefetch
		})
		var script []parts.Transaction
		untouched := make(map[uuid.UUID]bool)
		for range 2 * prefetch {
			for _, o := range []parts.Transaction{orders(1, world.Classic), orders(1, world.Exchange), orders(1, world.Quorum)} {
				script = append(script, o)
				if o.Orders[0].To != world.Exchange {
					untouched[o.Orders[0].ID] = true
				}
			}
		}
		s.commit(script...)
		s.Must("wait", servertest.Await(t.Context(), "the untouched messages arrive", func() (bool, error) {
			rows, err := s.Post().QueryContext(t.Context(), `SELECT id FROM arrivals`)
			if err != nil {
				return false, err
			}
			defer rows.Close()
			for rows.Next() {
				var id uuid.UUID
				if err := rows.Scan(&id); err != nil {
					return false, err
				}
				delete(untouched, id)
			}
			return len(untouched) == 0, rows.Err()
		}))
	})
	s.Must("lock rows", err)
	if len(rows) == 0 {
		t.Error("no row was locked: nothing is shown")
	}
	s.Must("delete queue", s.ClearBeside())
	s.End(0)
}
