package verifier

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

const (
	// lookupLimit bounds one lookup statement.
	lookupLimit = 1000
	// lookupAgainLimit bounds how many waiting messages ride along with new ones.
	lookupAgainLimit = 256
	// lookupGather is the pause before a lookup under load, and the time between
	// lookups of waiting messages that no settler has time for.
	lookupGather = 4 * time.Millisecond
	// underLoad is the size of a batch from which on a stage pauses to gather.
	underLoad = 16
)

// look asks the ledger, without waiting, about all that has arrived. Whoever is
// found goes on; the others go to the waiting room. The waiting ones that nobody
// settles are asked about again.
func (s *session) look(ctx context.Context) error {
	last := 0
	for {
		again := lookupAgainLimit
		select {
		case <-ctx.Done():
			return nil
		case <-s.arrivals.more:
		case <-s.room.again:
			again = lookupLimit
		case <-s.idlers():
		}
		if last >= underLoad {
			pause(ctx, lookupGather)
		}
		fresh := s.arrivals.take(lookupLimit)
		waiting := s.room.lookAgain(min(again, lookupLimit))
		last = len(fresh)
		if len(fresh)+len(waiting) == 0 {
			continue
		}
		if err := s.lookUp(ctx, fresh, waiting); err != nil {
			return err
		}
	}
}

// idlers ticks while there are waiting messages that nobody settles.
func (s *session) idlers() <-chan time.Time {
	if s.room.idlers() == 0 {
		return nil
	}
	return time.After(2 * lookupGather)
}

func (s *session) lookUp(ctx context.Context, fresh, waiting []*message) error {
	ids := make([]uuid.UUID, 0, len(fresh)+len(waiting))
	for _, m := range fresh {
		ids = append(ids, m.staged.ID)
	}
	for _, m := range waiting {
		ids = append(ids, m.staged.ID)
	}
	committed, err := s.ledger.Committed(ctx, ids)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up: %w", err)
	}
	found := make(map[uuid.UUID]bool, len(committed))
	for _, id := range committed {
		found[id] = true
	}
	var hits, misses []*message
	for _, m := range fresh {
		if found[m.staged.ID] {
			hits = append(hits, m)
		} else {
			misses = append(misses, m) // not a verdict: rule 3
		}
	}
	for _, m := range waiting {
		s.room.looked(m, found[m.staged.ID])
		if found[m.staged.ID] {
			hits = append(hits, m)
		}
	}
	s.room.enter(misses...)
	s.crowd()
	s.committed(hits...)
	return nil
}

// settle waits for the transaction of one message at a time.
func (s *session) settle(ctx context.Context) error {
	for {
		m := s.room.next(ctx)
		if m == nil {
			return nil
		}
		outcome, err := s.ledger.Settle(ctx, m.staged.ID, s.opts.SettleWait)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("settle: %w", err)
		}
		leaves := outcome != bridge.StillOpen || s.overstays(m, time.Now())
		s.room.settled(m, !leaves)
		switch {
		case outcome == bridge.Committed:
			s.committed(m)
		case outcome == bridge.RolledBack:
			s.drop(m)
		case leaves:
			s.setAside(m)
		}
	}
}
