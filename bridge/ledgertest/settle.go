package ledgertest

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
)

// settle returns the outcome alone.
func settle(ctx context.Context, ledger driver.Ledger, id uuid.UUID, wait time.Duration) (driver.Outcome, error) {
	outcome, _, err := ledger.Settle(ctx, id, wait)
	return outcome, err
}

func testSettleReportsCommit(t *testing.T, d *database) {
	testSettleReports(t, d, driver.Committed, func(tx *sql.Tx) error { return tx.Commit() })
}

func testSettleReportsRollback(t *testing.T, d *database) {
	testSettleReports(t, d, driver.RolledBack, func(tx *sql.Tx) error { return tx.Rollback() })
}

func testSettleReportsKill(t *testing.T, d *database) {
	if d.Kill == nil {
		t.Skip("no transaction can be killed from outside")
	}
	testSettleReports(t, d, driver.RolledBack, func(tx *sql.Tx) error { return d.Kill(t.Context(), d.ledger.DB(), tx) })
}

// testSettleReports ends a transaction while a settle waits for it.
func testSettleReports(t *testing.T, d *database, want driver.Outcome, end func(*sql.Tx) error) {
	id := newID()
	tx := d.begin(t, id)
	settled := beside(func() (driver.Outcome, error) { return settle(t.Context(), d.ledger, id, wait) })
	d.waiting(t, 1)
	ended := time.Now()
	check(t, end(tx), "end the transaction")
	outcome, err := next(t, "settle", settled)
	check(t, err, "settle")
	if outcome != want {
		t.Fatalf("settle returned %q, must return %q", outcome, want)
	}
	after := time.Since(ended)
	if after > prompt {
		t.Fatalf("settle returned %v after the end: by the time-out, not by the end", after)
	}
	t.Logf("settle returned %v after the call that ended the transaction began", after)
	d.expectSettled(t, id, want)
}

// expectStillOpen fails unless a short settle waits to its end, and returns StillOpen.
func expectStillOpen(t *testing.T, d *database, id uuid.UUID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), prompt) // for a settle that has no bound
	defer cancel()
	start := time.Now()
	outcome, _, err := d.ledger.Settle(ctx, id, short)
	check(t, err, "settle")
	waited := time.Since(start)
	if outcome != driver.StillOpen {
		t.Fatalf("settle returned %q while the transaction is open", outcome)
	}
	if waited < short/2 || waited > prompt {
		t.Fatalf("settle waited for %v, its bound was %v", waited, short)
	}
}

func testSettleStillOpen(t *testing.T, d *database) {
	db := d.connect()
	db.SetMaxOpenConns(1)
	ledger, err := d.Open(t.Context(), db)
	check(t, err, "open")
	single := &database{Harness: d.Harness, connect: d.connect, sender: d.sender, ledger: ledger}

	var before string
	if d.SessionID != "" {
		before = scalar(t, db, d.SessionID)
	}
	id := newID()
	tx := d.begin(t, id)
	expectStillOpen(t, single, id)
	single.expectCommitted(t, []uuid.UUID{id})
	expectStillOpen(t, single, id)
	if d.SessionID != "" {
		if after := scalar(t, db, d.SessionID); after != before {
			t.Fatalf("the session was %s, is %s", before, after)
		}
	}
	check(t, tx.Rollback(), "roll back")
	single.expectSettled(t, id, driver.RolledBack)
}

func testInstance(t *testing.T, d *database) {
	known, unknown := newID(), newID()
	tx := d.begin(t, known)
	instance, err := d.ledger.Instance(t.Context(), d.in(tx))
	check(t, err, "name the server")
	if instance == "" {
		t.Fatal("the server has no name")
	}
	check(t, tx.Commit(), "commit")
	elsewhere, err := d.Open(t.Context(), d.connect())
	check(t, err, "open")
	for _, ledger := range []driver.Ledger{d.ledger, elsewhere} {
		for id, outcome := range map[uuid.UUID]driver.Outcome{known: driver.Committed, unknown: driver.RolledBack} {
			_, from, err := ledger.Committed(t.Context(), []uuid.UUID{id})
			if err != nil || from != instance {
				t.Errorf("the lookup of an ID that is %s is answered by %q, %v, must be by %q", outcome, from, err, instance)
			}
			got, from, err := ledger.Settle(t.Context(), id, wait)
			if err != nil || got != outcome || from != instance {
				t.Errorf("the settle returned %s, from %q, %v, must return %s from %q", got, from, err, outcome, instance)
			}
		}
	}
}

func testSettleUnknown(t *testing.T, d *database) {
	id := newID()
	d.expectSettled(t, id, driver.RolledBack)
	d.expectSettled(t, id, driver.RolledBack)
	d.expectCommitted(t, []uuid.UUID{id})
	d.commit(t, id)
	d.expectSettled(t, id, driver.Committed)
}

func testSettleCancelled(t *testing.T, d *database) {
	id := newID()
	tx := d.begin(t, id)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	settled := beside(func() (driver.Outcome, error) { return settle(ctx, d.ledger, id, wait) })
	d.waiting(t, 1)
	start := time.Now()
	cancel()
	outcome, err := next(t, "a cancelled settle", settled)
	if took := time.Since(start); took > prompt {
		t.Fatalf("settle returned %v after its context was cancelled", took)
	}
	if outcome != driver.StillOpen || err == nil {
		t.Fatalf("a cancelled settle returned %q, %v", outcome, err)
	}
	d.expectIdle(t)
	d.expectCommitted(t, []uuid.UUID{id})
	check(t, tx.Rollback(), "roll back")
	d.expectSettled(t, id, driver.RolledBack)
	d.commit(t, id) // the cancelled settle left nothing that blocks this
	d.expectSettled(t, id, driver.Committed)
}

// deadline is a deadline that a Settle with a longer wait must keep, even if the server counts in
// seconds.
const deadline = 3 * time.Second

func testSettleDeadline(t *testing.T, d *database) {
	if d.SessionID == "" {
		t.Skip("the session has no name")
	}
	db := d.connect()
	db.SetMaxOpenConns(1)
	ledger, err := d.Open(t.Context(), db)
	check(t, err, "open")
	before := scalar(t, db, d.SessionID)
	id := newID()
	d.begin(t, id)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	outcome, _, err := ledger.Settle(ctx, id, wait)
	check(t, err, "settle")
	if outcome != driver.StillOpen || ctx.Err() != nil {
		t.Fatalf("settle returned %q, its deadline has passed: %t", outcome, ctx.Err() != nil)
	}
	if after := scalar(t, db, d.SessionID); after != before {
		t.Fatalf("the session was %s, is %s", before, after)
	}
}

const settlers = 16

func testSettleSameID(t *testing.T, d *database) {
	for _, want := range []driver.Outcome{driver.Committed, driver.RolledBack} {
		id := newID()
		tx := d.begin(t, id)
		settleAll(t, d, slices.Repeat([]uuid.UUID{id}, settlers), func() {
			if want == driver.Committed {
				check(t, tx.Commit(), "commit")
			} else {
				check(t, tx.Rollback(), "roll back")
			}
		}, func(uuid.UUID) driver.Outcome { return want })
	}
}

func testSettleManyIDs(t *testing.T, d *database) {
	committed, rolledBack := newIDs(settlers/2), newIDs(settlers/2)
	all := append(append([]uuid.UUID(nil), committed...), rolledBack...)
	var end []func() error
	if d.OneWriter {
		d.commit(t, committed[1:]...)
		d.rollBack(t, rolledBack...)
		end = append(end, d.begin(t, committed[0]).Commit)
	} else {
		for i := range committed {
			end = append(end, d.begin(t, committed[i]).Commit, d.begin(t, rolledBack[i]).Rollback)
		}
	}
	settleAll(t, d, all, func() {
		for _, end := range end {
			check(t, end(), "end a transaction")
		}
	}, func(id uuid.UUID) driver.Outcome {
		if contains(committed, id) {
			return driver.Committed
		}
		return driver.RolledBack
	})
}

// settleAll settles all ids at once, calls end when they wait, and compares.
func settleAll(t *testing.T, d *database, ids []uuid.UUID, end func(), want func(uuid.UUID) driver.Outcome) {
	t.Helper()
	var settled []<-chan reply[driver.Outcome]
	for _, id := range ids {
		settled = append(settled, beside(func() (driver.Outcome, error) { return settle(t.Context(), d.ledger, id, wait) }))
	}
	d.waiting(t, len(ids))
	end()
	for i, id := range ids {
		if outcome, err := next(t, "settle", settled[i]); err != nil || outcome != want(id) {
			t.Errorf("settle returned %q, %v, must return %q", outcome, err, want(id))
		}
	}
}

func testRecent(t *testing.T, d *database) {
	if d.ledger.Features().KeepsRows {
		_, _, err := d.ledger.Recent(t.Context(), newIDs(1), older)
		expectDenied(t, "look up recent IDs", err)
		return
	}
	old, young, open, unknown := newID(), newID(), newID(), newID()
	d.commit(t, old)
	_, err := d.sender.DB().ExecContext(t.Context(), d.Older+" WHERE id = "+d.Literal(old))
	check(t, err, "make a row older")
	d.commit(t, young)
	d.begin(t, open)
	_, instance, err := d.ledger.Committed(bounded(t), newIDs(1))
	check(t, err, "look up")
	for age, want := range map[time.Duration][]uuid.UUID{oldAge: {young}, 2 * older: {old, young}} {
		found, from, err := d.ledger.Recent(bounded(t), []uuid.UUID{unknown, old, open, young}, age)
		check(t, err, "look up recent IDs")
		if len(found) != len(want) || !contains(found, young) || !contains(found, want[0]) {
			t.Errorf("of %v the IDs within %v are %v, must be %v", []uuid.UUID{old, young}, age, found, want)
		}
		if from != instance {
			t.Errorf("answered by %q, the lookup by %q", from, instance)
		}
	}
}
