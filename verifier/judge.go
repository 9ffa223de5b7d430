package verifier

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/proof"
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
	// settleAge is the age of a message under load from which a settler waits for its transaction
	// alone: most transactions end sooner, and the next lookups find their messages.
	settleAge = 25 * time.Millisecond
)

// A judge finds out whether the transactions of messages have committed, by lookups that never wait
// and by settles that wait. Only a settle may conclude that a transaction rolled back.
type judge struct {
	*pipeline
	proven   *proof.Proven // the ledger, on the server that the proof covers
	room     *waitingRoom
	evidence *evidence
	limits   *waitLimits
}

// lookUpAll looks up messages until ctx ends: messages that were just unpacked, and again messages in
// the waiting room that no settler has. Committed messages go on; the others go to the waiting room.
func (j *judge) lookUpAll(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-j.toLookUp.More:
		case <-j.room.lookNow:
		case <-j.room.idlers():
		}
		if j.toLookUp.Count() < lookupEnough {
			pipe.Pause(ctx, j.load.gather(lookupGather))
		}
		fresh := j.toLookUp.Take(lookupLimit)
		waiting := j.room.lookAgain(time.Now(), lookupLimit)
		if len(fresh)+len(waiting) == 0 {
			continue
		}
		if err := j.lookUp(ctx, fresh, waiting); err != nil {
			return err
		}
	}
}

func (j *judge) lookUp(ctx context.Context, fresh, waiting []*message) error {
	found, err := j.findCommitted(ctx, slices.Concat(fresh, waiting))
	if ctx.Err() != nil { // setAsideSplitGroups must see the messages
		j.toLookUp.Add(fresh...)
		for _, m := range waiting {
			j.room.looked(m, false, time.Now())
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up: %w", err)
	}
	var hits, misses, again, young []*message
	// With shorter pauses, further lookups would cost more than settling.
	busy, now := j.load.gather(lookupGather) >= lookupGather/2, time.Now()
	for _, m := range fresh { // a message that is not found has no outcome yet: rule 3 of package bridge
		switch {
		case found[m.staged.ID]:
			hits = append(hits, m)
			if m.unacked.From == j.waiting {
				j.load.add(1) // parse has not counted it
			}
		case m.unacked.From == j.waiting:
			again = append(again, m)
		case busy && now.Sub(m.received) < settleAge:
			young = append(young, m)
		default:
			misses = append(misses, m)
		}
	}
	if len(young) > 0 {
		j.toLookUp.Add(young...)
	}
	j.carried.looked(fresh...)
	for _, m := range waiting {
		j.room.looked(m, found[m.staged.ID], now)
		if found[m.staged.ID] {
			hits = append(hits, m)
		}
	}
	j.room.enter(false, misses...)
	j.room.enter(true, again...) // each of them has waited in a verifier before
	pipe.Wake(j.limits.more)
	if err := j.evidence.seek(ctx, hits...); err != nil && ctx.Err() == nil {
		return err
	}
	j.committed(hits...)
	return nil
}

// findCommitted returns the IDs of the messages that have certainly committed.
func (j *judge) findCommitted(ctx context.Context, messages []*message) (map[uuid.UUID]bool, error) {
	ids := make([]uuid.UUID, len(messages))
	for i, m := range messages {
		ids[i] = m.staged.ID
	}
	var committed []uuid.UUID
	err := j.connections.lookUp(ctx, &j.room.settling, j.opts.SettleWait+ledgerTimeout, func() (err error) {
		asking, cancel := context.WithTimeout(ctx, ledgerTimeout)
		defer cancel()
		committed, err = j.proven.Committed(asking, ids)
		return err
	})
	return setOf(committed), err
}

// settleAll waits for the transactions of messages, one after the other, until ctx ends.
func (j *judge) settleAll(ctx context.Context) error {
	refused := pipe.NewBackOff(refusedFirst, refusedLongest)
	for j.connections.acquire(ctx) {
		m, slow := j.room.next(ctx)
		if m == nil {
			j.connections.release()
			return nil
		}
		outcome, evident, swept, err := j.settle(ctx, m, slow)
		j.connections.release()
		if ctx.Err() != nil {
			j.room.waited(m, true) // setAsideSplitGroups must see the message
			return nil
		}
		if j.connections.noteRefusal(err, int(j.room.settling.Load())) {
			j.room.waited(m, true)
			pipe.Pause(ctx, refused.NextBackOff())
			continue
		}
		if err != nil {
			return fmt.Errorf("settle: %w", err)
		}
		refused.Reset()
		if outcome == driver.RolledBack && !evident {
			j.evidence.noteWithheld(time.Now())
			j.room.withhold(m) // until there is evidence
			continue
		}
		tooMany := m.unacked.From == j.staging && j.limits.excess() > 0 // setAsideExcess takes no message from a settler
		leaves := outcome != driver.StillOpen || tooMany || j.limits.overstays(m, time.Now())
		j.room.waited(m, !leaves)
		switch {
		case outcome == driver.Committed:
			j.committed(m)
		case swept:
			j.deadLetter(m, deadReason{wire.DeadSwept, "row absent, but a sweep removed orphan rows of its age: its row may have been one of them"})
		case outcome == driver.RolledBack:
			j.drop(m)
		case leaves:
			j.setAside(m)
		}
	}
	return nil
}

// settle waits for the transaction of one message. evident reports whether there was evidence when
// the outcome was known, and swept whether the message's row is absent but may have been swept.
func (j *judge) settle(ctx context.Context, m *message, slow bool) (outcome driver.Outcome, evident, swept bool, err error) {
	wait := j.opts.SettleWait
	if !slow || m.unacked.From.Full() { // other messages need the settler too
		wait = min(wait, slowAge)
	}
	j.connections.yieldToLookup(ctx)
	asking, cancel := context.WithTimeout(ctx, wait+ledgerTimeout)
	defer cancel()
	j.room.settling.Add(1)
	outcome, err = j.proven.Settle(asking, m.staged.ID, wait)
	j.room.settling.Add(-1)
	evident = j.evidence.isFound()
	if err == nil && outcome == driver.Committed {
		err = j.evidence.seek(ctx, m)
	}
	if err == nil && outcome == driver.RolledBack && evident {
		swept, err = sweptMaybe(ctx, j.ledger, m)
	}
	return outcome, evident, swept, err
}
