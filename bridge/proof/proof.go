// Package proof shows on a live database that the lookups of a ledger wait for open transactions
// (rule 5 of package bridge). A verifier judges by a Proven ledger only. The proof uses the
// interfaces of package driver, and is the same for all databases.
package proof

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// proofWait is how long the proof lets a settle wait for the open canary: long enough to show that
// it waits, short enough for a quick start.
const proofWait = 150 * time.Millisecond

// settleBegins is how long a settle gets to begin its wait, before the proof ends the canary's
// transaction.
const settleBegins = 100 * time.Millisecond

// proofPatience bounds the whole proof, on a busy database.
const proofPatience = 30 * time.Second

// canaryPatience bounds how long a canary's transaction is open. The canary holds locks: if work on
// the whole table (ALTER TABLE, VACUUM FULL) waits for it, the proof's lookups and all senders wait
// behind that work. So the canary's transaction is ended, and the proof is tried again.
const canaryPatience = 3 * time.Second

// proofPause is the pause before the next attempt. It doubles each time.
const proofPause = 500 * time.Millisecond

// errCanaryLate: the transaction of a canary was ended before the proof was done.
var errCanaryLate = fmt.Errorf("a canary's transaction was ended after %v", canaryPatience)

// whyLate ends the error of a proof that did not finish in time.
const whyLate = "its statements wait for a lock on the table (VACUUM FULL, ALTER TABLE, LOCK TABLE), " +
	"or its COMMIT for a missing synchronous standby, or the server is overloaded"

// forgetPatience bounds the removal of the last canary.
const forgetPatience = 5 * time.Second

// Proven is a ledger by which a verifier may judge: Prove has shown that it waits. It believes
// outcomes only of the instance of the proof. If another instance answers, such as a copy of the
// database or an old primary to which the pool has opened a connection, it returns an error that
// wraps bridge.ErrOtherInstance and names both.
type Proven struct {
	ledger   driver.Ledger
	instance driver.Instance
}

// Instance returns the instance of the proof.
func (p *Proven) Instance() driver.Instance { return p.instance }

// Committed calls Ledger.Committed, and checks the answering instance.
func (p *Proven) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	found, from, err := p.ledger.Committed(ctx, ids)
	if err == nil && (from != "" || len(found) > 0) {
		err = p.expect(from)
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Settle calls Ledger.Settle, and checks the answering instance.
func (p *Proven) Settle(ctx context.Context, id uuid.UUID, wait time.Duration) (driver.Outcome, error) {
	outcome, from, err := p.ledger.Settle(ctx, id, wait)
	if err == nil && outcome != driver.StillOpen {
		err = p.expect(from)
	}
	if err != nil {
		return driver.StillOpen, err
	}
	return outcome, nil
}

// Recent calls Ledger.Recent, and checks the answering instance.
func (p *Proven) Recent(ctx context.Context, ids []uuid.UUID, age time.Duration) ([]uuid.UUID, error) {
	found, from, err := p.ledger.Recent(ctx, ids, age)
	if err == nil && (from != "" || len(found) > 0) {
		err = p.expect(from)
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

// expect returns an error if an outcome came from another instance.
func (p *Proven) expect(from driver.Instance) error {
	if from != p.instance {
		return fmt.Errorf("%w: the proof covers %s, the answer came from %s", bridge.ErrOtherInstance, p.instance, from)
	}
	return nil
}

// Prove shows, on the live database, that ledger waits for open transactions and returns their
// outcome (rule 5 of package bridge), and that one instance has given all answers. It records
// canaries with new IDs, and removes them; a crash leaves at most one orphan row. If there is a
// ProofLedger, Prove proves that one instead, and a rollback on the ProofLedger's own ProofLedger.
//
// An error that wraps bridge.ErrProof means that the database, or something in front of it, does
// not make the lookup wait: no verifier may judge by it. Any other error means that the proof could
// not be carried out, and may be tried again. One of them is bridge.ErrOtherInstance: the pool's
// connections lead to different servers.
//
// A canary's transaction is open for 3 s at most. If it is held up for longer, Prove tries again,
// for 30 s in all.
//
// After bridge.ErrProof Prove calls FallBack, and proves once more if the ledger has a second way
// to wait.
func Prove(ctx context.Context, ledger driver.Ledger) (*Proven, error) {
	ctx, cancel := context.WithTimeout(ctx, proofPatience)
	defer cancel()
	for pause := proofPause; ; pause *= 2 {
		instance, err := prove(ctx, ledger)
		switch {
		case err == nil:
			return &Proven{ledger, instance}, nil
		case ctx.Err() == nil && errors.Is(err, bridge.ErrProof) && ledger.FallBack(err): // not after ctx: a later proof may be under way
			continue
		case errors.Is(err, errCanaryLate):
			sleep(ctx, pause)
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, fmt.Errorf("%w; %s", err, whyLate)
		}
		if ctx.Err() != nil || !errors.Is(err, errCanaryLate) {
			return nil, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func prove(ctx context.Context, ledger driver.Ledger) (driver.Instance, error) {
	if ledger.DB().Stats().MaxOpenConnections == 1 {
		return "", errors.New("prove the ledger: pool allows 1 connection, needs at least 2")
	}
	if err := ledger.Check(ctx); err != nil {
		return "", err
	}
	var beside driver.Ledger
	if other := ledger.ProofLedger(); other != nil {
		ledger, beside = other, other.ProofLedger()
	}
	p := &Proven{ledger: ledger}
	if err := proveRollback(ctx, p); err != nil {
		return "", fmt.Errorf("prove a rollback: %w", err)
	}
	if err := proveCommit(ctx, p); err != nil {
		return "", fmt.Errorf("prove a commit: %w", err)
	}
	if beside != nil {
		if err := proveRollback(ctx, &Proven{beside, p.instance}); err != nil {
			return "", fmt.Errorf("prove a rollback in the own table: %w", err)
		}
	}
	return p.instance, nil
}

func proveRollback(ctx context.Context, p *Proven) error {
	canary := uuid.Must(uuid.NewV7())
	return withOpenCanary(ctx, p, canary, func(ctx context.Context, end func(commit bool) error) error {
		start := time.Now()
		outcome, err := p.Settle(ctx, canary, proofWait)
		if err != nil {
			return fmt.Errorf("settle the canary: %w", err)
		}
		if outcome != driver.StillOpen {
			return fmt.Errorf("%w: the lookup returned %q while the transaction was open", bridge.ErrProof, outcome)
		}
		if waited := time.Since(start); waited < proofWait/2 {
			return fmt.Errorf("%w: the lookup returned after %v while the transaction was open", bridge.ErrProof, waited)
		}
		if err := expectCommitted(ctx, p, canary, false, "while its transaction was open"); err != nil {
			return err
		}
		if err := endWhileSettling(ctx, p, canary, driver.RolledBack, func() error { return end(false) }); err != nil {
			return err
		}
		return expectCommitted(ctx, p, canary, false, "after its rollback")
	})
}

func proveCommit(ctx context.Context, p *Proven) (err error) {
	canary := uuid.Must(uuid.NewV7())
	// The canary is not there yet. Without the right to delete it, each attempt would leave a row.
	if err := forgetCanary(ctx, p.ledger, canary); err != nil {
		return err
	}
	defer func() {
		// A verifier that is stopped while it starts leaves no row either, even if the canary's
		// COMMIT was under way.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetPatience)
		defer cancel()
		if err != nil {
			_, _ = p.Settle(ctx, canary, forgetPatience/2)
		}
		forget := forgetCanary(ctx, p.ledger, canary)
		if err == nil {
			err = forget
		}
	}()
	return withOpenCanary(ctx, p, canary, func(ctx context.Context, end func(commit bool) error) error {
		if err := endWhileSettling(ctx, p, canary, driver.Committed, func() error { return end(true) }); err != nil {
			return err
		}
		if err := expectCommitted(ctx, p, canary, true, "after its commit"); err != nil {
			return err
		}
		if err := proveBeside(ctx, p, canary); err != nil {
			return err
		}
		if err := proveRecent(ctx, p, canary); err != nil {
			return err
		}
		if err := forgetCanary(ctx, p.ledger, canary); err != nil {
			return err
		}
		return expectSettled(ctx, p, canary, driver.RolledBack, "after it was forgotten")
	})
}

// proveBeside looks up a committed canary together with an open one. If an open row hid the other
// rows of its lookup, one slow transaction would hold up all messages.
func proveBeside(ctx context.Context, p *Proven, committed uuid.UUID) error {
	canary := uuid.Must(uuid.NewV7())
	return withOpenCanary(ctx, p, canary, func(ctx context.Context, _ func(bool) error) error {
		ids, err := p.Committed(ctx, []uuid.UUID{canary, committed})
		if err != nil {
			return fmt.Errorf("look up two canaries: %w", err)
		}
		if !slices.Equal(ids, []uuid.UUID{committed}) {
			return fmt.Errorf("%w: the non-waiting lookup of a committed canary and an open one found %d, must find only the committed one", bridge.ErrProof, len(ids))
		}
		return nil
	})
}

// proveRecent calls Recent for a committed canary. If Recent failed later, such as for lack of a
// right, nothing would ever be dropped. Ledgers that keep their rows have no Recent. The answer is
// ignored, since clocks may be set back.
func proveRecent(ctx context.Context, p *Proven, committed uuid.UUID) error {
	if p.ledger.Features().KeepsRows {
		return nil
	}
	if _, err := p.Recent(ctx, []uuid.UUID{committed}, driver.MinSweepAge); err != nil {
		return fmt.Errorf("look up a recent canary: %w", err)
	}
	return nil
}

// forgetCanary retries: on SQLite any other writer locks the row.
func forgetCanary(ctx context.Context, ledger driver.Ledger, canary uuid.UUID) error {
	const again = 50 * time.Millisecond
	for {
		left, err := ledger.Forget(ctx, []uuid.UUID{canary})
		if err != nil || len(left) == 0 {
			return err
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return fmt.Errorf("forget the canary: another transaction has locked its row: %w", context.Cause(ctx))
		}
	}
}

// withOpenCanary runs fn while a transaction that recorded canary is open. fn may end the
// transaction; otherwise it is rolled back. The first canary's instance is the instance that all
// other canaries and all answers must have. ctx ends if the transaction is open for too long.
func withOpenCanary(ctx context.Context, p *Proven, canary uuid.UUID, fn func(ctx context.Context, end func(commit bool) error) error) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tx, err := p.ledger.DB().BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := p.ledger.Record(ctx, bridge.SQL(tx), driver.Plain(canary)); err != nil {
		return fmt.Errorf("record the canary: %w", err)
	}
	late := time.AfterFunc(canaryPatience, func() { cancel(errCanaryLate) })
	defer func() {
		late.Stop()
		if err != nil && errors.Is(context.Cause(ctx), errCanaryLate) {
			err = fmt.Errorf("%w: %v", errCanaryLate, err) // no verdict on the lookup, whose transaction was ended
		}
	}()
	from, err := p.ledger.Instance(ctx, bridge.SQL(tx))
	if err != nil {
		return err
	}
	if p.instance == "" {
		p.instance = from
	}
	if err := p.expect(from); err != nil {
		return fmt.Errorf("record the canary: %w", err)
	}
	return fn(ctx, func(commit bool) error {
		defer late.Stop()
		if commit {
			return tx.Commit()
		}
		return tx.Rollback()
	})
}

// endWhileSettling ends the canary's transaction while a settle waits for it: a statement that has
// waited may see another state than a statement that comes later.
func endWhileSettling(ctx context.Context, p *Proven, canary uuid.UUID, want driver.Outcome, end func() error) error {
	settled := make(chan error, 1)
	began := make(chan struct{})
	go func() {
		close(began)
		settled <- expectSettled(ctx, p, canary, want, "when its transaction ended")
	}()
	<-began
	select {
	case err := <-settled:
		if err == nil {
			err = fmt.Errorf("%w: the lookup returned %q while the transaction was open", bridge.ErrProof, want)
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

// expectSettled settles the canary, and retries: on SQLite any other writer makes the outcome
// 'still open' for a while.
func expectSettled(ctx context.Context, p *Proven, canary uuid.UUID, want driver.Outcome, when string) error {
	for {
		outcome, err := p.Settle(ctx, canary, time.Second)
		switch {
		case err != nil:
			return fmt.Errorf("settle the canary: %w", err)
		case outcome == want:
			return nil
		case outcome != driver.StillOpen:
			return fmt.Errorf("%w: the lookup returned %q %s, not %q", bridge.ErrProof, outcome, when, want)
		case ctx.Err() != nil:
			return fmt.Errorf("settle the canary: still open: %w", context.Cause(ctx))
		}
	}
}

func expectCommitted(ctx context.Context, p *Proven, canary uuid.UUID, want bool, when string) error {
	ids, err := p.Committed(ctx, []uuid.UUID{canary})
	if err != nil {
		return fmt.Errorf("look up the canary: %w", err)
	}
	if slices.Contains(ids, canary) != want || len(ids) > 1 {
		return fmt.Errorf("%w: the non-waiting lookup found the canary: %t %s", bridge.ErrProof, !want, when)
	}
	return nil
}
