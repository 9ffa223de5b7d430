package ledgertest

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// As after a late confirm: the staged copy was forwarded and forgotten.
func testUnparkForwarded(t *testing.T, p *parking) {
	messages := p.parked(t, 2)
	gone, other := messages[0], messages[1]
	p.forget(t, gone.ID)
	var staged []driver.Parked
	removed, err := p.ledger.Unpark(t.Context(), uuid.Nil, 1000, func(_ context.Context, messages []driver.Parked) error {
		staged = messages
		return nil
	})
	check(t, err, "unpark")
	expectSame(t, staged, []driver.Parked{other})
	if removed != 2 {
		t.Errorf("removed are %d, must be 2", removed)
	}
	gone = p.parked(t, 1)[0]
	p.forget(t, gone.ID)
	removed, err = p.ledger.Unpark(t.Context(), uuid.Nil, 1000, func(context.Context, []driver.Parked) error {
		t.Error("it is staged")
		return nil
	})
	check(t, err, "unpark")
	if removed != 1 {
		t.Errorf("removed are %d, must be 1", removed)
	}
}

// The staged copy may be through before the unpark has committed.
func testUnparkForgetWhileStaging(t *testing.T, p *parking) {
	for left := range 2 {
		forgotten, kept := p.parked(t, 3), p.parked(t, left)
		all := append(idsOf(forgotten), idsOf(kept)...)
		removed, err := p.ledger.Unpark(t.Context(), uuid.Nil, 1000, func(context.Context, []driver.Parked) error {
			p.expectCommitted(t, all, all...)
			p.expectSettled(t, all[0], driver.Committed)
			start := time.Now()
			p.forget(t, idsOf(forgotten)...)
			if took := time.Since(start); took > prompt {
				t.Errorf("the forget took %v", took)
			}
			p.expectSettled(t, all[0], driver.RolledBack)
			return nil
		})
		check(t, err, "unpark")
		if removed != len(all) {
			t.Errorf("removed are %d, must be %d", removed, len(all))
		}
		p.expectCommitted(t, all, idsOf(kept)...)
	}
}

// lockedRow begins a transaction that deletes the row of an ID, as a Forget does, and
// has it locked until it ends.
func (d *database) lockedRow(t *testing.T, id uuid.UUID) *sql.Tx {
	t.Helper()
	tx := begin(t, d.sender.DB())
	_, err := tx.ExecContext(t.Context(), "DELETE FROM bridge_ledger WHERE id = "+d.Literal(id))
	check(t, err, "lock a row")
	return tx
}

// skipWithOneWriter skips a test of two writers.
func (d *database) skipWithOneWriter(t *testing.T) {
	t.Helper()
	if d.OneWriter {
		t.Skip("there are no two writers")
	}
}

func testUnparkLockedRow(t *testing.T, p *parking) {
	p.skipWithOneWriter(t)
	for _, end := range []string{"rollback", "commit"} {
		messages := p.parked(t, 3)
		var tx *sql.Tx
		start := time.Now()
		removed, err := p.ledger.Unpark(bounded(t), uuid.Nil, 1000, func(context.Context, []driver.Parked) error {
			tx = p.lockedRow(t, messages[1].ID)
			return nil
		})
		check(t, err, "unpark")
		if removed != 2 {
			t.Errorf("removed are %d, must be 2", removed)
		}
		if took := time.Since(start); took > prompt {
			t.Errorf("the unpark took %v", took)
		}
		if end == "rollback" {
			check(t, tx.Rollback(), "roll back")
			p.unpark(t, messages[1])
			continue
		}
		check(t, tx.Commit(), "commit")
		removed, err = p.ledger.Unpark(t.Context(), uuid.Nil, 1000, func(context.Context, []driver.Parked) error {
			t.Error("it is staged again")
			return nil
		})
		check(t, err, "unpark")
		if removed != 1 {
			t.Errorf("removed are %d, must be 1", removed)
		}
	}
}

// What is staged is looked up, settled and forgotten at once, by several, in any
// order, while other unparks go on.
func testUnparkStress(t *testing.T, p *parking) {
	const rounds, perRound, forgetters, unparkers = 10, 20, 3, 2
	for range rounds {
		p.parked(t, perRound)
	}
	staged := make(chan []uuid.UUID, rounds*perRound*10)
	var forgetting, unparking sync.WaitGroup
	for range forgetters {
		forgetting.Go(func() {
			for ids := range staged {
				ids = slices.Clone(ids)
				rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
				if _, _, err := p.ledger.Committed(t.Context(), ids); err != nil {
					t.Errorf("look up: %v", err)
				}
				if _, _, err := p.ledger.Settle(t.Context(), ids[0], wait); err != nil {
					t.Errorf("settle: %v", err)
				}
				if _, err := p.ledger.Forget(t.Context(), ids); err != nil {
					t.Errorf("forget: %v", err)
				}
			}
		})
	}
	for range unparkers {
		unparking.Go(func() {
			for {
				_, err := p.ledger.Unpark(t.Context(), uuid.Nil, perRound/2, func(_ context.Context, messages []driver.Parked) error {
					ids := idsOf(messages)
					for range forgetters { // each of them meets the others
						staged <- ids
					}
					return nil
				})
				if err != nil {
					t.Errorf("unpark: %v", err)
					return
				}
				n, err := p.ledger.CountParked(t.Context(), 1)
				if err != nil || n == 0 {
					return
				}
			}
		})
	}
	unparking.Wait()
	close(staged)
	forgetting.Wait()
	p.expectCount(t, 0)
}
