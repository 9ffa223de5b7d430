package verifier

import (
	"context"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A sweptLedger has removed orphans of every age.
type sweptLedger struct{ driver.Ledger }

func (sweptLedger) Features() driver.Features { return driver.Features{Sweeps: true, Carries: true} }

func (sweptLedger) SweptBefore(context.Context) (time.Time, error) { return time.Now(), nil }

func TestASweepHasRemovedNoRowThatCarriesItsMessage(t *testing.T) {
	for carried, want := range map[bool]bool{false: true, true: false} {
		old := &message{staged: wire.Staged{Carried: carried, StagedAt: time.Now().Add(-time.Hour)}}
		if swept, err := sweptMaybe(t.Context(), sweptLedger{}, old); err != nil || swept != want {
			t.Errorf("carried: %v: its row may have been swept: %v, %v", carried, swept, err)
		}
	}
}
