package parts

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A ledger writes its calls and their results into the diary, by message ID.
type ledger struct{ driver.Ledger }

func (l *ledger) Record(ctx context.Context, tx bridge.Tx, entries []driver.Entry) error {
	err := l.Ledger.Record(ctx, tx, entries)
	for _, e := range entries {
		what := Recorded
		switch {
		case e.Message != nil && e.Unpublished:
			what = CarriedAlone
		case e.Message != nil:
			what = Carried
		}
		noteEach([]uuid.UUID{e.ID}, what, err)
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

func (l *ledger) Claim(ctx context.Context, rows []driver.DueRow) ([]driver.Carried, error) {
	claimed, err := l.Ledger.Claim(ctx, rows)
	if err != nil {
		for _, row := range rows {
			noteEach([]uuid.UUID{row.ID}, Claimed, err)
		}
	}
	for _, message := range claimed {
		noteEach([]uuid.UUID{message.ID}, Claimed, nil)
	}
	return claimed, err
}

func (l *ledger) Touch(ctx context.Context, ids []uuid.UUID) error {
	err := l.Ledger.Touch(ctx, ids)
	noteEach(ids, "stage time is moved on", err)
	return err
}

// Words that the judge looks for in the diaries. With them it explains rows that are left in a
// ledger and messages that were lost with a queue, recognizes carried messages, and counts copies.
const (
	Recorded = "recorded"
	Found    = "found"
	Settled  = "settled: " // followed by the outcome
	ToForget = "to be forgotten"
	Deleted  = "row deleted"
	// Carried and CarriedAlone take the place of Recorded for a carried message. A sender writes
	// them before its COMMIT. A CarriedAlone message is not published.
	Carried      = "recorded with its message"
	CarriedAlone = "recorded with its message, which is not published"
	// Claimed: a verifier is about to stage the message again.
	Claimed = "claimed"
	// Done: a verifier has finished a delivery of the message and will not see it again.
	Done = "done: "
	// Redelivered serves only to find the messages that a verifier's fault touches.
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
