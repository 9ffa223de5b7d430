package verifier

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

const (
	// touchInterval is the time between searches for messages whose stage time is to be moved on.
	touchInterval = 100 * time.Millisecond
	// touchLimit bounds one statement.
	touchLimit = 500
	// touchPatience is how long messages that are to be set aside wait for their Touch.
	touchPatience = time.Second
)

// A toucher moves on the stage times of held carried messages, so that no verifier stages them
// again. One statement runs at a time. The toucher does not wait for a statement that hangs.
type toucher struct {
	ledger  driver.RecordedRows
	running sideCall
	lastError
}

func newToucher(ledger driver.RecordedRows) *toucher {
	return &toucher{ledger: ledger, running: newSideCall()}
}

// touch moves the stage times on, and waits for the answer for patience. The messages must have
// committed. Touch skips a row that another transaction has locked, and does not name it. Such a
// message counts as touched, so the next try comes some seconds later, and at worst the message is
// staged again needlessly.
func (t *toucher) touch(ctx context.Context, held []*heldCarried, patience time.Duration) error {
	ids := make([]uuid.UUID, len(held))
	for i, h := range held {
		ids[i] = h.id
	}
	_, err := inTime(ctx, t.running, patience, func(ctx context.Context) (struct{}, error) {
		began := time.Now()
		err := t.ledger.Touch(ctx, ids)
		if err == nil {
			for _, h := range held {
				h.touched.Store(began.UnixMilli())
			}
		}
		return struct{}{}, err
	})
	if ctx.Err() != nil && err != nil { // the session's end, no failure of the database
		return err
	}
	return t.failed(err)
}

// round moves on the stage times of messages that are held for long or for an unavailable target,
// and of delivered messages whose rows could not be deleted.
func (t *toucher) round(ctx context.Context, carried *carriedSet, left *forgetter, isHeld func(bridge.Target) bool) (time.Duration, error) {
	now := time.Now()
	held := carried.untouched(now, isHeld, touchLimit)
	held = append(held, left.untouched(now, touchLimit-len(held))...)
	if len(held) == 0 {
		_ = t.failed(nil) // the next statement shows whether the database still fails
		return touchInterval, nil
	}
	if err := t.touch(ctx, held, ledgerTimeout); err != nil {
		return touchInterval, fmt.Errorf("touch %d messages: %w", len(held), err)
	}
	if len(held) == touchLimit {
		return 0, nil
	}
	return touchInterval, nil
}

// touchMessages moves on the stage times of messages that are to be set aside. It waits for touchPatience
// at most, and not at all while Touch fails.
func (t *toucher) touchMessages(ctx context.Context, batch []*message) error {
	var held []*heldCarried
	for _, m := range batch {
		held = append(held, m.carried)
	}
	if len(held) == 0 || t.failure() != nil {
		return nil
	}
	if err := t.touch(ctx, held, touchPatience); err != nil && ctx.Err() == nil {
		return fmt.Errorf("touch %d messages that are set aside: %w", len(held), err)
	}
	return nil
}

// needsTouch reports whether the stage time of m must be moved on before m may be set aside.
func (m *message) needsTouch(now time.Time) bool {
	return m.committed && m.carried != nil && m.carried.touchDue(now)
}
