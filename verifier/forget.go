package verifier

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

const (
	forgetLimit = 1000
	// forgetGather is the pause before a DELETE: nobody waits for it, and each saved
	// statement and ack leaves the database and the broker more time for messages.
	forgetGather = 30 * time.Millisecond
)

// forget deletes the rows of messages that are safe, then lets them be acked.
// The other order would be as right (rule 4 of package bridge), but a crash
// between the two would leave an orphan row; this way it leaves a redelivery,
// which is absent and dropped.
func (s *session) forget(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.toForget.more:
		}
		pause(ctx, forgetGather)
		batch := s.toForget.take(forgetLimit)
		if len(batch) == 0 {
			continue
		}
		ids := make([]uuid.UUID, len(batch))
		for i, m := range batch {
			ids[i] = m.staged.ID
		}
		asking, cancel := context.WithTimeout(ctx, ledgerTimeout)
		err := s.ledger.Forget(asking, ids)
		cancel()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("forget: %w", err)
		}
		s.done(batch...)
		s.forgetting.add(-len(batch))
	}
}
