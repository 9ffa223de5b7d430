package ledger_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// broken is a ledger with some of its verbs replaced.
type broken struct {
	driver.Ledger
	committed func(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error)
	settle    func(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error)
	forget    func(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error)
}

func (b broken) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
	if b.committed == nil {
		return b.Ledger.Committed(ctx, ids)
	}
	return b.committed(ctx, ids)
}

func (b broken) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
	if b.settle == nil {
		return b.Ledger.Settle(ctx, id, wait)
	}
	return b.settle(ctx, id, wait)
}

func (b broken) Forget(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	if b.forget == nil {
		return b.Ledger.Forget(ctx, ids)
	}
	return b.forget(ctx, ids)
}

// The proof is the same for every database. The tests of each database show that a good ledger
// passes it.
func TestABrokenLedgerFailsTheProof(t *testing.T) {
	t.Parallel()
	type lookup = func(context.Context, []uuid.UUID) ([]uuid.UUID, driver.Instance, error)
	type settle = func(context.Context, uuid.UUID, time.Duration) (driver.Outcome, driver.Instance, error)
	_, db := migrated(t)
	good := openLedger(t, db)
	// settleBut settles correctly and then changes the outcome.
	settleBut := func(bend func(driver.Outcome) driver.Outcome) settle {
		return func(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
			outcome, from, err := good.Settle(ctx, id, wait)
			if err == nil && outcome == driver.StillOpen {
				_, from, err = good.Committed(ctx, []uuid.UUID{id})
			}
			return bend(outcome), from, err
		}
	}
	// replace replaces one outcome with another.
	replace := func(from, to driver.Outcome) settle {
		return settleBut(func(outcome driver.Outcome) driver.Outcome {
			if outcome == from {
				return to
			}
			return outcome
		})
	}
	finds := func(find func(asked []uuid.UUID) []uuid.UUID) lookup {
		return func(ctx context.Context, asked []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
			_, from, err := good.Committed(ctx, asked)
			return find(asked), from, err
		}
	}

	cases := map[string]broken{
		"settle does not wait, and takes a miss for a rollback": {
			settle: func(ctx context.Context, id uuid.UUID, _ time.Duration) (driver.Outcome, driver.Instance, error) {
				found, from, err := good.Committed(ctx, []uuid.UUID{id})
				if len(found) == 1 {
					return driver.Committed, from, err
				}
				return driver.RolledBack, from, err
			}},
		"settle does not wait, and takes a miss for still open": {
			settle: func(ctx context.Context, id uuid.UUID, _ time.Duration) (driver.Outcome, driver.Instance, error) {
				found, from, err := good.Committed(ctx, []uuid.UUID{id})
				if len(found) == 1 {
					return driver.Committed, from, err
				}
				return driver.StillOpen, from, err
			}},
		"settle takes the end of its wait for a rollback":    {settle: replace(driver.StillOpen, driver.RolledBack)},
		"settle takes the end of its wait for a commit":      {settle: replace(driver.StillOpen, driver.Committed)},
		"settle says committed of everything that has ended": {settle: replace(driver.RolledBack, driver.Committed)},
		"settle says rolled back of everything that has ended": {
			settle: replace(driver.Committed, driver.RolledBack)},
		"settle says committed of everything": {
			settle: settleBut(func(driver.Outcome) driver.Outcome { return driver.Committed })},
		"the lookup finds every ID that it is asked for": {
			committed: finds(func(asked []uuid.UUID) []uuid.UUID { return asked })},
		"the lookup finds IDs that it was not asked for": {
			committed: finds(func(asked []uuid.UUID) []uuid.UUID { return append([]uuid.UUID{newID(), newID()}, asked...) })},
		"the lookup finds nothing": {
			committed: finds(func([]uuid.UUID) []uuid.UUID { return nil })},
		"the lookup finds nothing beside an open row": {
			committed: func(ctx context.Context, asked []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
				found, from, err := good.Committed(ctx, asked)
				if len(found) < len(asked) {
					return nil, from, err
				}
				return found, from, err
			}},
		"forget forgets nothing": {
			forget: func(context.Context, []uuid.UUID) ([]uuid.UUID, error) { return nil, nil }},
	}
	for name, ledger := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ledger.Ledger = good
			_, err := proof.Prove(t.Context(), ledger)
			for tries := 1; tries < 3 && errors.Is(err, context.DeadlineExceeded); tries++ { // a slow machine
				_, err = proof.Prove(t.Context(), ledger)
			}
			if !errors.Is(err, bridge.ErrProof) {
				t.Fatalf("the proof says %v, must say %v", err, bridge.ErrProof)
			}
		})
	}
}

// A verifier without the right to delete tries to start again and again. Its proofs must not
// leave rows.
func TestAProofThatCannotDeleteLeavesNoRow(t *testing.T) {
	t.Parallel()
	_, db := migrated(t)
	good, noRight := openLedger(t, db), errors.New("no right to delete")
	ledger := broken{Ledger: good, forget: func(context.Context, []uuid.UUID) ([]uuid.UUID, error) { return nil, noRight }}
	if _, err := proof.Prove(t.Context(), ledger); !errors.Is(err, noRight) {
		t.Errorf("the proof says %v, must say %v", err, noRight)
	}
	var rows int
	must(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM bridge_ledger").Scan(&rows))
	if rows != 0 {
		t.Errorf("%d rows are left", rows)
	}
}

// VACUUM FULL and ALTER TABLE wait for the canary's transaction. The proof's lookup waits behind
// them, and so do all senders.
func TestAProofGivesWayToWorkOnTheWholeTable(t *testing.T) {
	t.Parallel()
	_, db := migrated(t)
	good := openLedger(t, db)
	locked := make(chan error, 1)
	work := begin(t, db)
	var once sync.Once
	ledger := broken{Ledger: good, settle: func(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, driver.Instance, error) {
		once.Do(func() { // the canary is open
			go func() {
				_, err := work.ExecContext(t.Context(), "LOCK TABLE bridge_ledger IN ACCESS EXCLUSIVE MODE")
				locked <- err
			}()
			awaitLock(t, db)
		})
		return good.Settle(ctx, id, wait)
	}}
	proved := make(chan error, 1)
	go func() { proved <- prove(t, ledger) }()
	select {
	case err := <-locked:
		must(t, err)
	case err := <-proved:
		t.Fatalf("work on the whole table had to wait until the proof ended: %v", err)
	}
	must(t, work.Rollback())
	must(t, servertest.Next(t, "the proof is tried again", proved))
}

func TestAProofThatIsLateNamesCauses(t *testing.T) {
	t.Parallel()
	_, db := migrated(t)
	ledger := openLedger(t, db)
	_, err := begin(t, db).ExecContext(t.Context(), "LOCK TABLE bridge_ledger IN ACCESS EXCLUSIVE MODE")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = proof.Prove(ctx, ledger)
	for _, cause := range []string{"lock on the table", "synchronous standby"} {
		if err == nil || !strings.Contains(err.Error(), cause) || errors.Is(err, bridge.ErrProof) {
			t.Errorf("the error does not name %s: %v", cause, err)
		}
	}
}
