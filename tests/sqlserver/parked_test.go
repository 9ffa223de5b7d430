package sqlserver_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A row that is locked for an update can be read: the sweep must see it.
func TestAMessageThatIsTakenIsStillParked(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		ledger := open(t, connect(t, address))
		id := newID()
		tx := recorded(t, ledger, id)
		must(t, ledger.Park(t.Context(), bridge.SQL(tx), []driver.Parked{{ID: id, Message: []byte("x")}}))
		must(t, tx.Commit())
		_, err := ledger.Unpark(t.Context(), uuid.Nil, 10, func(ctx context.Context, _ []driver.Parked) error {
			execute(t, ledger.DB(), "UPDATE bridge_ledger SET recorded_at = DATEADD(hour, -2, recorded_at)")
			orphans, err := ledger.Orphans(ctx, time.Hour, 10)
			must(t, err)
			if len(orphans) > 0 {
				t.Errorf("%d orphans", len(orphans))
			}
			n, err := ledger.CountParked(ctx, 10)
			must(t, err)
			if n != 1 {
				t.Errorf("%d messages are parked", n)
			}
			return nil
		})
		must(t, err)
		if found, err := ledger.Committed(t.Context(), []uuid.UUID{id}); err != nil || len(found) != 1 {
			t.Errorf("the lookup finds %v, %v", found, err)
		}
	})
}
