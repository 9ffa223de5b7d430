package parts

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A ledger notes in the diary what is asked of it and what it says, by message ID.
type ledger struct{ driver.Ledger }

func (l *ledger) Record(ctx context.Context, tx bridge.Tx, entries []driver.Entry) error {
	err := l.Ledger.Record(ctx, tx, entries)
	for _, e := range entries {
		noteEach([]uuid.UUID{e.ID}, Recorded, err)
	}
	return err
}

func (l *ledger) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
	found, from, err := l.Ledger.Committed(ctx, ids)
	noteEach(found, Found, err)
	return found, from, err
}

func (l *ledger) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	outcome, from, err := l.Ledger.Settle(ctx, id, wait)
	noteEach([]uuid.UUID{id}, Settled+outcome.String(), err)
	return outcome, from, err
}

func (l *ledger) Forget(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	noteEach(ids, ToForget, nil)
	left, err := l.Ledger.Forget(ctx, ids)
	isLeft := func(id uuid.UUID) bool { return slices.Contains(left, id) }
	noteEach(slices.DeleteFunc(slices.Clone(ids), isLeft), Deleted, err)
	return left, err
}

// Words of the diaries that are looked for. The judge explains with them, except the last two,
// the rows that are left in a ledger and what was lost with a queue, and nothing else.
const (
	Recorded = "recorded"
	Found    = "found"
	Settled  = "settled: " // and the outcome
	ToForget = "to be forgotten"
	Deleted  = "row deleted"
	// Redelivered only tells which messages a fault of a verifier touches.
	Redelivered = "was delivered before"
)

func noteEach(ids []uuid.UUID, what string, err error) {
	for _, id := range ids {
		if err != nil {
			note("%s %s: %v", id, what, err)
		} else {
			note("%s %s", id, what)
		}
	}
}
