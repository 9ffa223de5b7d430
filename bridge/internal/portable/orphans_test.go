package portable

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A sweep that fails in the middle returns the removed rows, and the watermark covers them.
func TestSweepReturnsTheRemovedRows(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	orphans, rows := make([]driver.Orphan, Chunk+1), make([]OrphanRow, Chunk+1)
	for i := range orphans {
		orphans[i] = driver.Orphan{ID: uuid.New(), RecordedAt: start.Add(time.Duration(i) * time.Second)}
		rows[i] = OrphanRow{uuid.NullUUID{UUID: orphans[i].ID, Valid: true}, sql.NullTime{Time: orphans[i].RecordedAt}}
	}
	failure := errors.New("no database")
	var raised time.Time
	l := &Ledger{verbs: Verbs{
		Classify: func(err error, _ string) error { return err },
		Most:     Chunk,
		Tick:     time.Second,
		Orphans:  func(context.Context, time.Duration, int) ([]OrphanRow, error) { return rows, nil },
		Raise: func(_ context.Context, before time.Time) error {
			raised = before
			return nil
		},
		Remove: func(_ context.Context, ids []uuid.UUID, before time.Time) ([]uuid.UUID, error) {
			if !before.Equal(raised) {
				t.Errorf("removes before %v, the watermark is %v", before, raised)
			}
			if len(ids) < Chunk {
				return nil, failure
			}
			return ids[1:], nil
		},
	}}
	swept, err := l.Sweep(t.Context(), driver.MinSweepAge, 5000)
	if !errors.Is(err, failure) || !slices.Equal(swept, orphans[1:Chunk]) {
		t.Errorf("swept are %d, %v", len(swept), err)
	}
	if last := orphans[Chunk].RecordedAt; !raised.After(last) {
		t.Errorf("the watermark is %v, the youngest row %v", raised, last)
	}
}
