package verifier

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier/internal/pipe"
)

const (
	// lookupLimit bounds one lookup statement.
	lookupLimit = 1000
	// lookupGather is the pause before a lookup under full load, unless lookupEnough messages have
	// arrived already, as groups of carried messages do.
	lookupGather = 6 * time.Millisecond
	lookupEnough = 20
	// idlersGather is the time between lookups of waiting messages that no settler has time for.
	idlersGather = 8 * time.Millisecond
	// settleAge is the age of a message under load from which a settler waits for its transaction
	// alone: most transactions end sooner, and the next lookups find their messages.
	settleAge = 25 * time.Millisecond
	// ledgerTimeout bounds the database's answer, without the time of waiting for a transaction. After
	// it the connection counts as dead, and the session ends.
	ledgerTimeout = 30 * time.Second
)

// look asks the ledger, without waiting, about all messages that have arrived. Committed messages
// go on; the others go to the waiting room. Waiting messages that no settler has are looked up
// again.
func (s *session) look(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.arrivals.More:
		case <-s.room.lookNow:
		case <-s.room.idlers():
		}
		if s.arrivals.Count() < lookupEnough {
			pipe.Pause(ctx, s.load.gather(lookupGather))
		}
		fresh := s.arrivals.Take(lookupLimit)
		waiting := s.room.lookAgain(time.Now(), lookupLimit)
		if len(fresh)+len(waiting) == 0 {
			continue
		}
		if err := s.lookUp(ctx, fresh, waiting); err != nil {
			return err
		}
	}
}

func (s *session) lookUp(ctx context.Context, fresh, waiting []*message) error {
	ids := make([]uuid.UUID, 0, len(fresh)+len(waiting))
	for _, m := range fresh {
		ids = append(ids, m.staged.ID)
	}
	for _, m := range waiting {
		ids = append(ids, m.staged.ID)
	}
	var committed []uuid.UUID
	err := s.connections.look(ctx, &s.settling, s.opts.SettleWait+ledgerTimeout, func() (err error) {
		asking, cancel := context.WithTimeout(ctx, ledgerTimeout)
		defer cancel()
		committed, err = s.proven.Committed(asking, ids)
		return err
	})
	if ctx.Err() != nil { // reunite must see the messages
		s.arrivals.Add(fresh...)
		for _, m := range waiting {
			s.room.looked(m, false, time.Now())
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up: %w", err)
	}
	found := make(map[uuid.UUID]bool, len(committed))
	for _, id := range committed {
		found[id] = true
	}
	var hits, misses, again, young []*message
	// With shorter pauses, further lookups would cost more than settling.
	busy, now := s.load.gather(lookupGather) >= lookupGather/2, time.Now()
	for _, m := range fresh { // a message that is not found has no outcome yet: rule 3 of package bridge
		switch {
		case found[m.staged.ID]:
			hits = append(hits, m)
			if m.unacked.From == s.waiting {
				s.load.add(1) // counts like a new one, since it goes on
			}
		case m.unacked.From == s.waiting:
			again = append(again, m)
		case busy && now.Sub(m.received) < settleAge:
			young = append(young, m)
		default:
			misses = append(misses, m)
		}
	}
	if len(young) > 0 {
		s.arrivals.Add(young...)
	}
	s.carried.looked(fresh...)
	for _, m := range waiting {
		s.room.looked(m, found[m.staged.ID], now)
		if found[m.staged.ID] {
			hits = append(hits, m)
		}
	}
	s.room.enter(false, misses...)
	s.room.enter(true, again...) // each of them has waited in a verifier before
	pipe.Wake(s.more)
	if err := s.seekEvidence(ctx, hits...); err != nil && ctx.Err() == nil {
		return err
	}
	s.committed(hits...)
	return nil
}

// settle waits for the transaction of one message at a time.
func (s *session) settle(ctx context.Context) error {
	refused := pipe.NewBackOff(refusedFirst, refusedLongest)
	for s.connections.begin(ctx) {
		m, slow := s.room.next(ctx)
		if m == nil {
			s.connections.release()
			return nil
		}
		wait := s.opts.SettleWait
		if !slow || m.unacked.From.Full() { // other messages need the settler too
			wait = min(wait, slowAge)
		}
		s.connections.yield(ctx)
		asking, cancel := context.WithTimeout(ctx, wait+ledgerTimeout)
		s.settling.Add(1)
		outcome, err := s.proven.Settle(asking, m.staged.ID, wait)
		s.settling.Add(-1)
		cancel()
		swept, evident := false, s.evidence.isFound()
		if err == nil && outcome == driver.Committed {
			err = s.seekEvidence(ctx, m)
		}
		if err == nil && outcome == driver.RolledBack && evident {
			swept, err = s.sweptMaybe(ctx, m)
		}
		s.connections.release()
		if ctx.Err() != nil {
			s.room.waited(m, true) // reunite must see the message
			return nil
		}
		if s.connections.refuses(err, int(s.settling.Load())) {
			s.room.waited(m, true)
			pipe.Pause(ctx, refused.NextBackOff())
			continue
		}
		if err != nil {
			return fmt.Errorf("settle: %w", err)
		}
		refused.Reset()
		if outcome == driver.RolledBack && !evident {
			s.withhold(m)
			continue
		}
		tooMany := m.unacked.From == s.staging && s.excess() > 0 // setAsideExcess takes no message from a settler
		leaves := outcome != driver.StillOpen || tooMany || s.overstays(m, time.Now())
		s.room.waited(m, !leaves)
		switch {
		case outcome == driver.Committed:
			s.committed(m)
		case swept:
			s.deadLetter(m, deathReason{wire.DeadSwept, "row absent, but a sweep removed orphan rows of its age: its row may have been one of them"})
		case outcome == driver.RolledBack:
			s.drop(m)
		case leaves:
			s.setAside(m)
		}
	}
	return nil
}
