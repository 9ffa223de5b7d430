package stage

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/sender"
)

// Judging returns the ledger by which the stage's verifiers judge.
func (s *Stage) Judging() driver.Ledger {
	if s.Strict || s.Ledger.Features().KeepsRows {
		return s.Ledger
	}
	return Ageless{s.Ledger}
}

// An Ageless ledger reports every committed row as recent.
type Ageless struct{ driver.Ledger }

// Recent calls Committed.
func (l Ageless) Recent(ctx context.Context, ids []uuid.UUID, _ time.Duration) ([]uuid.UUID, driver.Instance, error) {
	return l.Ledger.Committed(ctx, ids)
}

// Evidence commits a message to a separate queue, with its own sender. Before a verifier has found
// a committed message, it drops nothing.
func (s *Stage) Evidence() {
	s.t.Helper()
	tx, err := s.DB.BeginTx(s.t.Context(), nil)
	s.must("begin", err)
	_, err = s.NewSender(sender.Options{Carry: sender.CarryNever}).SendTx(s.t.Context(), bridge.SQL(tx), To(s.Queue("evidence", nil), "evidence"))
	if err != nil {
		_ = tx.Rollback()
	}
	s.must("send evidence", err)
	s.must("commit evidence", tx.Commit())
}
