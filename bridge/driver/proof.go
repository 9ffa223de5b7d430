package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
)

// proofWait is how long the proof lets a settle wait for the open canary: long
// enough to tell waiting from not waiting, short enough for a quick start.
const proofWait = 150 * time.Millisecond

// settleBegins is how long the proof gives a settle to begin to wait, before it ends
// the canary's transaction.
const settleBegins = 100 * time.Millisecond

// proofPatience bounds the whole proof, on a database that is busy.
const proofPatience = 30 * time.Second

// forgetPatience bounds the removal of the last canary.
const forgetPatience = 5 * time.Second

// Prove shows, on the live database, that ledger waits for open transactions and tells their
// outcome (rule 5 of package bridge). It records canaries of its own, with new IDs, and removes
// them again; a crash leaves at most one orphan row. If there is a ProofLedger, it proves that.
//
// An error that wraps bridge.ErrProof means that the database, or something between it and us,
// does not make the lookup wait: no verifier may judge by it. Any other error means that the
// proof could not be carried out, and may be tried again.
//
// After bridge.ErrProof it calls FallBack, and proves once more if the ledger has a second way
// to wait.
func Prove(ctx context.Context, ledger Ledger) error {
	err := prove(ctx, ledger)
	if errors.Is(err, bridge.ErrProof) && ledger.FallBack(err) {
		return prove(ctx, ledger)
	}
	return err
}

func prove(ctx context.Context, ledger Ledger) error {
	ctx, cancel := context.WithTimeout(ctx, proofPatience)
	defer cancel()
	if ledger.DB().Stats().MaxOpenConnections == 1 {
		return errors.New("prove the ledger: the pool may have one connection, must have two at least")
	}
	if err := ledger.Check(ctx); err != nil {
		return err
	}
	if other := ledger.ProofLedger(); other != nil {
		ledger = other
	}
	if err := proveRollback(ctx, ledger); err != nil {
		return fmt.Errorf("prove a rollback: %w", err)
	}
	if err := proveCommit(ctx, ledger); err != nil {
		return fmt.Errorf("prove a commit: %w", err)
	}
	return nil
}

func proveRollback(ctx context.Context, ledger Ledger) error {
	canary := uuid.Must(uuid.NewV7())
	return withOpenCanary(ctx, ledger, canary, func(end func(commit bool) error) error {
		start := time.Now()
		outcome, err := ledger.Settle(ctx, canary, proofWait)
		if err != nil {
			return fmt.Errorf("settle the canary: %w", err)
		}
		if outcome != StillOpen {
			return fmt.Errorf("%w: the lookup said %q while the transaction was open", bridge.ErrProof, outcome)
		}
		if waited := time.Since(start); waited < proofWait/2 {
			return fmt.Errorf("%w: the lookup came back after %v while the transaction was open", bridge.ErrProof, waited)
		}
		if err := expectCommitted(ctx, ledger, canary, false, "while its transaction was open"); err != nil {
			return err
		}
		if err := endWhileSettling(ctx, ledger, canary, RolledBack, func() error { return end(false) }); err != nil {
			return err
		}
		return expectCommitted(ctx, ledger, canary, false, "after its rollback")
	})
}

func proveCommit(ctx context.Context, ledger Ledger) (err error) {
	canary := uuid.Must(uuid.NewV7())
	// It is not there yet. Without the right to delete it, each attempt would leave a row behind.
	if err := ledger.Forget(ctx, []uuid.UUID{canary}); err != nil {
		return err
	}
	defer func() {
		// A verifier that is stopped while it starts leaves no row behind either, even
		// if the canary's COMMIT was under way.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetPatience)
		defer cancel()
		if err != nil {
			_, _ = ledger.Settle(ctx, canary, forgetPatience/2)
		}
		forget := ledger.Forget(ctx, []uuid.UUID{canary})
		if err == nil {
			err = forget
		}
	}()
	return withOpenCanary(ctx, ledger, canary, func(end func(commit bool) error) error {
		if err := endWhileSettling(ctx, ledger, canary, Committed, func() error { return end(true) }); err != nil {
			return err
		}
		if err := expectCommitted(ctx, ledger, canary, true, "after its commit"); err != nil {
			return err
		}
		if err := proveBeside(ctx, ledger, canary); err != nil {
			return err
		}
		if err := ledger.Forget(ctx, []uuid.UUID{canary}); err != nil {
			return err
		}
		return expectSettled(ctx, ledger, canary, RolledBack, "after it was forgotten")
	})
}

// proveBeside looks a committed canary up beside one that is open. If an open row hid the
// others of its lookup, one slow transaction would hold up the messages of all.
func proveBeside(ctx context.Context, ledger Ledger, committed uuid.UUID) error {
	canary := uuid.Must(uuid.NewV7())
	return withOpenCanary(ctx, ledger, canary, func(func(bool) error) error {
		ids, err := ledger.Committed(ctx, []uuid.UUID{canary, committed})
		if err != nil {
			return fmt.Errorf("look up two canaries: %w", err)
		}
		if !slices.Equal(ids, []uuid.UUID{committed}) {
			return fmt.Errorf("%w: the non-waiting lookup of a committed canary and an open one found %d, must find the committed one alone", bridge.ErrProof, len(ids))
		}
		return nil
	})
}

// withOpenCanary runs fn while a transaction that recorded canary is open. fn
// may end the transaction; if it does not, it is rolled back.
func withOpenCanary(ctx context.Context, ledger Ledger, canary uuid.UUID, fn func(end func(commit bool) error) error) error {
	tx, err := ledger.DB().BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := ledger.Record(ctx, bridge.SQL(tx), []uuid.UUID{canary}); err != nil {
		return fmt.Errorf("record the canary: %w", err)
	}
	return fn(func(commit bool) error {
		if commit {
			return tx.Commit()
		}
		return tx.Rollback()
	})
}

// endWhileSettling ends the canary's transaction while a settle waits for it: what a
// statement sees that has waited may differ from what one sees that comes later.
func endWhileSettling(ctx context.Context, ledger Ledger, canary uuid.UUID, want Outcome, end func() error) error {
	settled := make(chan error, 1)
	began := make(chan struct{})
	go func() {
		close(began)
		settled <- expectSettled(ctx, ledger, canary, want, "when its transaction ended")
	}()
	<-began
	select {
	case err := <-settled:
		if err == nil {
			err = fmt.Errorf("%w: the lookup said %q while the transaction was open", bridge.ErrProof, want)
		}
		return err
	case <-time.After(settleBegins):
	}
	endErr := end()
	err := <-settled
	if endErr != nil {
		return fmt.Errorf("end the canary's transaction: %w", endErr)
	}
	return err
}

// expectSettled settles the canary, patiently: on SQLite any other writer makes
// the outcome 'still open' for a while.
func expectSettled(ctx context.Context, ledger Ledger, canary uuid.UUID, want Outcome, when string) error {
	for {
		outcome, err := ledger.Settle(ctx, canary, time.Second)
		switch {
		case err != nil:
			return fmt.Errorf("settle the canary: %w", err)
		case outcome == want:
			return nil
		case outcome != StillOpen:
			return fmt.Errorf("%w: the lookup said %q %s, not %q", bridge.ErrProof, outcome, when, want)
		case ctx.Err() != nil:
			return fmt.Errorf("settle the canary: still open: %w", context.Cause(ctx))
		}
	}
}

func expectCommitted(ctx context.Context, ledger Ledger, canary uuid.UUID, want bool, when string) error {
	ids, err := ledger.Committed(ctx, []uuid.UUID{canary})
	if err != nil {
		return fmt.Errorf("look up the canary: %w", err)
	}
	if slices.Contains(ids, canary) != want || len(ids) > 1 {
		return fmt.Errorf("%w: the non-waiting lookup found the canary: %t %s", bridge.ErrProof, !want, when)
	}
	return nil
}
