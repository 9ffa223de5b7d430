package portable

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A Sweep implements Sweep of driver.Ledger in three steps that differ between databases. Each step
// is committed before the next one begins.
type Sweep struct {
	// List is Orphans.
	List func(ctx context.Context, age time.Duration, limit int) ([]driver.Orphan, error)
	// Raise raises the watermark to before, unless it is higher.
	Raise func(ctx context.Context, before time.Time) error
	// Remove deletes the rows of ids that were recorded before that time and carry no message,
	// skips rows locked by another transaction, and returns the IDs of the deleted rows.
	Remove func(ctx context.Context, ids []uuid.UUID, before time.Time) ([]uuid.UUID, error)
	// Tick is the resolution of recorded_at.
	Tick time.Duration
	// Most is how many IDs Remove takes at once.
	Most int
}

// Run lists, raises and removes. Remove checks the age and the message again: a row found by List
// may be gone, and its ID recorded once more.
func (s Sweep) Run(ctx context.Context, age time.Duration, limit int) (swept []driver.Orphan, err error) {
	if age < driver.MinSweepAge {
		return nil, fmt.Errorf("age is %v, must be at least %v", age, driver.MinSweepAge)
	}
	orphans, err := s.List(ctx, age, limit)
	if err != nil || len(orphans) == 0 {
		return nil, err
	}
	before := orphans[len(orphans)-1].RecordedAt.Add(s.Tick)
	if err := s.Raise(ctx, before); err != nil {
		return nil, fmt.Errorf("raise the watermark: %w", err)
	}
	for chunk := range slices.Chunk(orphans, s.Most) {
		ids := make([]uuid.UUID, len(chunk))
		for i, o := range chunk {
			ids[i] = o.ID
		}
		removed, err := s.Remove(ctx, ids, before)
		if err != nil {
			return swept, fmt.Errorf("remove rows: %w", err)
		}
		gone := make(map[uuid.UUID]bool, len(removed))
		for _, id := range removed {
			gone[id] = true
		}
		for _, o := range chunk {
			if gone[o.ID] {
				swept = append(swept, o)
			}
		}
	}
	return swept, nil
}

// CheckAge returns an error if a list of orphans cannot have this age or limit.
func CheckAge(age time.Duration, limit int) error {
	switch {
	case age < 0:
		return fmt.Errorf("age is %v, must not be negative", age)
	case limit < 1:
		return fmt.Errorf("limit is %d, must be positive", limit)
	}
	return nil
}
