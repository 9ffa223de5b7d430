package driver

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// An Orphan is a row of the ledger that has been there for long.
type Orphan struct {
	ID uuid.UUID
	// RecordedAt is when the row was inserted, or its message was unparked: an
	// instant by the clock of the database.
	RecordedAt time.Time
}

// A Sweeper is a Ledger that removes rows whose message is gone from the queues:
// somebody purged or deleted a queue, a crash of the database took a DELETE back (see
// package postgres), or a verifier that acks first died before its DELETE. Nothing but
// the sweep removes such rows, and nobody can tell them from rows
// whose message is still on its way. So the sweep goes by age, and must not cost a
// message when it is wrong.
//
// # Why a wrong sweep loses nothing
//
// What would lose a message is a verifier that finds no row, takes that for a
// rollback and drops the message, where the sweep has taken the row of a commit.
// These four things exclude it:
//
//  1. A staged message carries a time that its sender took before it recorded the
//     ID: staged at S. Its row has the time of the INSERT by the database's clock:
//     recorded at R. So S <= R, but for the difference of the two clocks. (R must be
//     the time of the INSERT. In a transaction that has been open for hours, its
//     start would be hours before S.) An Unpark sets R anew after it has staged, so
//     that again S <= R for the time at which it encoded the message.
//  2. A sweep that removes the row first raises a watermark W above R, and commits
//     that; W never sinks.
//  3. A verifier whose Settle has found nothing reads W after it (SweptBefore). If a
//     sweep had removed the row, the Settle came after the removal, so the reading
//     shows a W above R.
//  4. It drops the message only if S >= W plus what the clocks may differ by. If a
//     sweep had removed the row, S <= R < W, so it does not: the message goes to the
//     dead queue, as one of which nothing is known.
//
// Nowhere does this ask how long anything takes: each of the two may hang for hours
// between any two steps. A message without the time S, from a sender that sets
// none, is never certainly younger than a watermark.
//
// A parked message keeps its row: it has not gone through a queue yet. It loses that
// protection in the transaction that sets R.
//
// # What a wrong sweep does cost
//
// Its message goes to the dead queue instead of its target, and so does one of a
// transaction that rolled back, if it was staged before W. So the age must be more
// than the longest time from a Record to the forwarding, through the longest
// transaction and the longest outage; and no sweep while the staging queue holds
// messages of that age.
type Sweeper interface {
	Ledger

	// Orphans lists at most limit committed rows that were recorded more than age ago
	// and have no parked message, the oldest first. It reads only, the whole ledger
	// once, and waits for no sender; a row that somebody has locked may be missing.
	Orphans(ctx context.Context, age time.Duration, limit int) ([]Orphan, error)

	// Sweep removes what Orphans lists, and returns what it has removed. An age below
	// MinSweepAge is an error. It first raises the watermark above the youngest of
	// them, and commits that; without such rows it changes nothing. Then it removes
	// them, at most a thousand in one transaction, and none that another
	// transaction has locked, which it does not wait for. After an error or a crash
	// the watermark may be raised and some of the rows removed; with an error it
	// returns those.
	Sweep(ctx context.Context, age time.Duration, limit int) ([]Orphan, error)

	// SweptBefore is the watermark: every row that a sweep has removed was recorded
	// before it. It is the zero time if there was no sweep. Only a primary answers.
	SweptBefore(ctx context.Context) (time.Time, error)
}

// MinSweepAge is the least age that a Sweep takes.
const MinSweepAge = time.Hour
