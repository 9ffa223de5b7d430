package parts

import (
	"context"
	"database/sql"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
)

// A ledger notes in the diary what is asked of it and what it says, by message ID.
// It holds the product's ledger itself, not its interface: whatever else that one
// can do stays to be found.
type ledger struct{ *postgres.Ledger }

func newLedger(ctx context.Context, db *sql.DB) (*ledger, error) {
	l, err := postgres.Open(ctx, db)
	return &ledger{l}, err
}

func (l *ledger) Record(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error {
	err := l.Ledger.Record(ctx, tx, ids)
	noteEach(ids, Recorded, err)
	return err
}

func (l *ledger) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	found, err := l.Ledger.Committed(ctx, ids)
	noteEach(found, "found", err)
	return found, err
}

func (l *ledger) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (bridge.Outcome, error) {
	outcome, err := l.Ledger.Settle(ctx, id, wait)
	noteEach([]uuid.UUID{id}, "settled: "+outcome.String(), err)
	return outcome, err
}

func (l *ledger) Forget(ctx context.Context, ids []uuid.UUID) error {
	noteEach(ids, ToForget, nil)
	err := l.Ledger.Forget(ctx, ids)
	noteEach(ids, Deleted, err)
	return err
}

// Words of the diaries that are looked for. The judge explains with the first two
// the rows that are left in a ledger, and nothing else.
const (
	Recorded = "recorded"
	ToForget = "to be forgotten"
	Deleted  = "row deleted"
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
