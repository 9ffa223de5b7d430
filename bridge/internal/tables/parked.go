package tables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// A Shelf is the parked messages as one transaction sees them. Nothing but Recorded
// may wait for a lock, and that only while the transaction has changed nothing in the
// ledger: so an Unpark is in no deadlock.
type Shelf interface {
	// Take locks at most limit messages that no other transaction has locked, the first
	// after that ID.
	Take(ctx context.Context, after uuid.UUID, limit int) ([]Size, error)
	// Recorded returns ids without those that have certainly no row in the ledger.
	Recorded(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error)
	// Load reads messages that were taken, if they are still there.
	Load(ctx context.Context, ids []uuid.UUID) ([]driver.Parked, error)
	// Touch sets recorded_at of the rows of ids to now, but of those that another
	// transaction has locked, and returns which it has set.
	Touch(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error)
	// Remove deletes messages that were taken, and returns how many were still there.
	Remove(ctx context.Context, ids []uuid.UUID) (int, error)
	Commit() error
	Rollback() error
}

// A Size is how many bytes a parked message has.
type Size struct {
	ID   uuid.UUID
	Size int64
}

// unparkFinish bounds what follows a successful stage.
const unparkFinish = 20 * time.Second

// Unpark is the Unpark of driver.Ledger. open begins a transaction that ends at the
// latest with its context.
func Unpark(ctx context.Context, open func(ctx context.Context) (Shelf, error), after uuid.UUID, limit int,
	stage func(ctx context.Context, messages []driver.Parked) error) (int, error) {
	if limit < 1 {
		return 0, fmt.Errorf("limit is %d, must be positive", limit)
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	// What has been staged is removed also if ctx has ended meanwhile: a stop makes no
	// duplicates. So the transaction follows ctx until then only.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	follow := context.AfterFunc(ctx, cancel)
	defer follow()

	shelf, err := open(work)
	if err != nil {
		return 0, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = shelf.Rollback() }()
	sizes, err := shelf.Take(work, after, min(limit, Chunk))
	if err != nil || len(sizes) == 0 {
		return 0, err
	}
	taken := within(sizes, driver.UnparkBytes)
	recorded, err := shelf.Recorded(work, taken)
	if err != nil {
		return 0, err
	}
	messages, err := shelf.Load(work, recorded)
	if err != nil {
		return 0, err
	}
	var kept []uuid.UUID
	if len(messages) > 0 {
		if !follow() {
			return 0, context.Cause(ctx)
		}
		if err := stageInTime(ctx, messages, stage); err != nil {
			return 0, err
		}
		defer time.AfterFunc(unparkFinish, cancel).Stop()
		if kept, err = touch(work, shelf, messages); err != nil {
			return 0, err
		}
	}
	removed, err := shelf.Remove(work, without(taken, kept))
	if err != nil {
		return 0, err
	}
	if err := shelf.Commit(); err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	return removed, nil
}

func stageInTime(ctx context.Context, messages []driver.Parked, stage func(context.Context, []driver.Parked) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, driver.UnparkPatience, errUnparkPatience)
	defer cancel()
	if err := stage(ctx, messages); err != nil {
		return fmt.Errorf("stage %d messages: %w", len(messages), err)
	}
	return nil
}

var errUnparkPatience = errors.New("not staged in time")

// touch sets the rows of what was staged to now. It returns the messages that must
// stay parked, as their rows are locked: by who forgets them, and then the next
// Unpark finds them gone, or by somebody else.
func touch(ctx context.Context, shelf Shelf, messages []driver.Parked) (kept []uuid.UUID, err error) {
	staged := make([]uuid.UUID, len(messages))
	for i, m := range messages {
		staged[i] = m.ID
	}
	rest, err := shelf.Recorded(ctx, staged) // some are forwarded and forgotten by now
	if err != nil || len(rest) == 0 {
		return nil, err
	}
	touched, err := shelf.Touch(ctx, rest)
	return without(rest, touched), err
}

// parkBytes is how much one statement parks at most, unless one message is larger.
const parkBytes = 1 << 20

// ParkChunks takes messages apart into what one statement parks.
func ParkChunks(messages []driver.Parked) iter.Seq[[]driver.Parked] {
	return func(yield func([]driver.Parked) bool) {
		for len(messages) > 0 {
			n, bytes := 1, len(messages[0].Message)
			for n < min(len(messages), Chunk) && bytes+len(messages[n].Message) <= parkBytes {
				bytes += len(messages[n].Message)
				n++
			}
			if !yield(messages[:n]) {
				return
			}
			messages = messages[n:]
		}
	}
}

// within returns the first messages that have at most so many bytes together, and one
// at least.
func within(sizes []Size, bytes int64) []uuid.UUID {
	ids := make([]uuid.UUID, 0, len(sizes))
	for _, s := range sizes {
		if bytes -= s.Size; bytes < 0 && len(ids) > 0 {
			break
		}
		ids = append(ids, s.ID)
	}
	return ids
}

// without returns ids but those in out, in their order.
func without(ids, out []uuid.UUID) []uuid.UUID {
	if len(out) == 0 {
		return ids
	}
	set := make(map[uuid.UUID]bool, len(out))
	for _, id := range out {
		set[id] = true
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id uuid.UUID) bool { return set[id] })
}
