package portable

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// sweep lists, raises and removes. Each step is committed before the next one begins. Remove checks
// the age and the message again: a listed row may be gone, and its ID recorded once more.
func (l *Ledger) sweep(ctx context.Context, age time.Duration, limit int) (swept []driver.Orphan, err error) {
	if age < driver.MinSweepAge {
		return nil, fmt.Errorf("age is %v, must be at least %v", age, driver.MinSweepAge)
	}
	orphans, err := l.orphans(ctx, age, limit)
	if err != nil || len(orphans) == 0 {
		return nil, err
	}
	before := orphans[len(orphans)-1].RecordedAt.Add(l.verbs.Tick)
	if err := l.verbs.Raise(ctx, before); err != nil {
		return nil, fmt.Errorf("raise the watermark: %w", err)
	}
	for chunk := range slices.Chunk(orphans, l.verbs.Most) {
		ids := make([]uuid.UUID, len(chunk))
		for i, o := range chunk {
			ids[i] = o.ID
		}
		removed, err := l.verbs.Remove(ctx, ids, before)
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

// orphans reads the whole ledger.
func (l *Ledger) orphans(ctx context.Context, age time.Duration, limit int) ([]driver.Orphan, error) {
	if err := CheckAge(age, limit); err != nil {
		return nil, err
	}
	rows, err := l.verbs.Orphans(ctx, age, limit)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, OtherLedger(l.identity)
	}
	var found []driver.Orphan
	for _, row := range rows {
		if row.ID.Valid {
			found = append(found, driver.Orphan{ID: row.ID.UUID, RecordedAt: row.RecordedAt.Time.UTC()})
		}
	}
	return found, nil
}

// CheckAge returns an error if a list cannot have this age or limit.
func CheckAge(age time.Duration, limit int) error {
	switch {
	case age < 0:
		return fmt.Errorf("age is %v, must not be negative", age)
	case limit < 1:
		return fmt.Errorf("limit is %d, must be positive", limit)
	}
	return nil
}
