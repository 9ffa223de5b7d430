package portable_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/internal/portable"
)

// A sweep that fails in the middle returns the removed rows, and the watermark covers them.
func TestSweepReturnsTheRemovedRows(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	orphans := make([]driver.Orphan, portable.Chunk+1)
	for i := range orphans {
		orphans[i] = driver.Orphan{ID: uuid.New(), RecordedAt: start.Add(time.Duration(i) * time.Second)}
	}
	failure := errors.New("no database")
	var raised time.Time
	sweep := portable.Sweep{
		Most: portable.Chunk,
		List: func(context.Context, time.Duration, int) ([]driver.Orphan, error) { return orphans, nil },
		Raise: func(_ context.Context, before time.Time) error {
			raised = before
			return nil
		},
		Remove: func(_ context.Context, ids []uuid.UUID, before time.Time) ([]uuid.UUID, error) {
			if !before.Equal(raised) {
				t.Errorf("removes before %v, the watermark is %v", before, raised)
			}
			if len(ids) < portable.Chunk {
				return nil, failure
			}
			return ids[1:], nil
		},
		Tick: time.Second,
	}
	swept, err := sweep.Run(t.Context(), driver.MinSweepAge, 5000)
	if !errors.Is(err, failure) || !slices.Equal(swept, orphans[1:portable.Chunk]) {
		t.Errorf("swept are %d, %v", len(swept), err)
	}
	if last := orphans[portable.Chunk].RecordedAt; !raised.After(last) {
		t.Errorf("the watermark is %v, the youngest row %v", raised, last)
	}
}
