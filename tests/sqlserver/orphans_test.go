package sqlserver_test

import (
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// Style 126 leaves out a fraction that is zero.
func TestATimeMayHaveNoFraction(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		ledger := open(t, connect(t, address))
		second := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		for recordedAt, watermark := range map[time.Time]time.Time{
			second: second.Add(time.Millisecond),
			second.Add(time.Minute - time.Millisecond): second.Add(time.Minute),
		} {
			id := newID()
			must(t, recorded(t, ledger, id).Commit())
			execute(t, ledger.DB(), "UPDATE bridge_ledger SET recorded_at = '"+recordedAt.Format("2006-01-02T15:04:05.000")+"'")
			swept, err := ledger.Sweep(t.Context(), time.Hour, 10)
			must(t, err)
			if len(swept) != 1 || swept[0] != (driver.Orphan{ID: id, RecordedAt: recordedAt}) {
				t.Errorf("swept %v, must be %s of %v", swept, id, recordedAt)
			}
			before, err := ledger.SweptBefore(t.Context())
			must(t, err)
			if before.Before(watermark) {
				t.Errorf("the watermark is %v, must be %v at least", before, watermark)
			}
		}
	})
}

// A sender commits a row and its parked message while the statement that lists orphans
// runs: it waits for the change of a table. The stand-in alone has the order of events
// that this needs.
func TestAMessageThatIsParkedWhileASweepLooksIsNoOrphan(t *testing.T) {
	for name, snapshot := range map[string]bool{"locking": false, "snapshot": true} {
		t.Run(name, func(t *testing.T) {
			server := servertest.SQLServerStandIn(t, nil)
			db := connect(t, newDatabase(t, server.URL("master"), snapshot))
			ledger := open(t, db)
			id := newID()
			tx := recorded(t, ledger, id)
			must(t, ledger.Park(t.Context(), bridge.SQL(tx), []driver.Parked{{ID: id, Message: []byte("x")}}))
			execute(t, tx, "UPDATE bridge_ledger SET recorded_at = DATEADD(hour, -2, recorded_at)")
			alter := begin(t, db, nil)
			execute(t, alter, "ALTER TABLE bridge_identity SET (LOCK_ESCALATION = DISABLE)")

			type result struct {
				swept []driver.Orphan
				err   error
			}
			done := make(chan result, 1)
			go func() {
				swept, err := ledger.Sweep(t.Context(), time.Hour, 10)
				done <- result{swept, err}
			}()
			awaitWaiting(t, db)
			must(t, tx.Commit())
			must(t, alter.Rollback())
			if r := servertest.Next(t, "the sweep ends", done); r.err != nil || len(r.swept) > 0 {
				t.Errorf("sweep: %v, %v, must remove nothing", r.swept, r.err)
			}
			expectCommitted(t, ledger, id, true)
		})
	}
}

// Whether a parked message that is being removed is there cannot be told.
func TestASweepThatMeetsALockedMessageIsBounded(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		ledger := open(t, connect(t, address))
		id := newID()
		tx := recorded(t, ledger, id)
		must(t, ledger.Park(t.Context(), bridge.SQL(tx), []driver.Parked{{ID: id, Message: []byte("x")}}))
		execute(t, tx, "UPDATE bridge_ledger SET recorded_at = DATEADD(hour, -2, recorded_at)")
		must(t, tx.Commit())
		remover := begin(t, ledger.DB(), nil)
		execute(t, remover, "DELETE FROM bridge_parked")
		if swept, err := ledger.Sweep(t.Context(), time.Hour, 10); err == nil || len(swept) > 0 {
			t.Errorf("sweep: %v, %v, must be an error", swept, err)
		}
		must(t, remover.Rollback())
		swept, err := ledger.Sweep(t.Context(), time.Hour, 10)
		must(t, err)
		if len(swept) > 0 {
			t.Errorf("swept %v", swept)
		}
		expectCommitted(t, ledger, id, true)
	})
}
