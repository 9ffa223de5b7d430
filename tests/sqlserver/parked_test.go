package sqlserver_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// Each lacks a right that parking, unparking or sweeping needs.
func TestAParkingErrorNamesTheMissingRight(t *testing.T) {
	park := func(t *testing.T, ledger *sqlserver.Ledger) error {
		id := newID()
		tx := recorded(t, ledger, id)
		if err := ledger.Park(t.Context(), bridge.SQL(tx), []driver.Parked{{ID: id, Message: []byte("x")}}); err != nil {
			return err
		}
		return tx.Commit()
	}
	unpark := func(t *testing.T, ledger *sqlserver.Ledger) error {
		must(t, park(t, ledger))
		_, err := ledger.Unpark(t.Context(), uuid.Nil, 10, func(context.Context, []driver.Parked) error { return nil })
		return err
	}
	sweep := func(t *testing.T, ledger *sqlserver.Ledger) error {
		must(t, recorded(t, ledger, newID()).Commit())
		execute(t, ledger.DB(), "UPDATE bridge_ledger SET recorded_at = DATEADD(hour, -2, recorded_at)")
		_, err := ledger.Sweep(t.Context(), time.Hour, 10)
		return err
	}
	for right, do := range map[string]func(t *testing.T, ledger *sqlserver.Ledger) error{
		"INSERT ON bridge_parked":    park,
		"SELECT ON bridge_parked":    unpark,
		"DELETE ON bridge_parked":    unpark,
		"UPDATE ON bridge_ledger":    unpark,
		"UPDATE ON bridge_watermark": sweep,
		"DELETE ON bridge_ledger":    sweep,
		"SELECT ON bridge_watermark": func(t *testing.T, ledger *sqlserver.Ledger) error {
			_, err := ledger.SweptBefore(t.Context())
			return err
		},
	} {
		t.Run(right, func(t *testing.T) {
			server := servertest.SQLServerStandIn(t, nil)
			ledger := open(t, connect(t, newDatabase(t, server.URL("master"), true)))
			server.Deny(right)
			err := do(t, ledger)
			verb, table, _ := strings.Cut(right, " ON ")
			if err == nil || !strings.Contains(err.Error(), "GRANT") || !strings.Contains(err.Error(), verb) || !strings.Contains(err.Error(), table) {
				t.Errorf("without %s: %v", right, err)
			}
		})
	}
}

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

// A secondary lags behind: its watermark could be too low.
func TestOnASecondaryThereIsNoWatermark(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	server.FailOver()
	if before, err := ledger.SweptBefore(t.Context()); !before.IsZero() || !errors.Is(err, bridge.ErrNotPrimary) {
		t.Errorf("the watermark: %v, %v, must be %v", before, err, bridge.ErrNotPrimary)
	}
}
