package sqlserver_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/tds"
)

func TestTheVictimOfADeadlockTriesAgain(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	id := newID()
	must(t, recorded(t, ledger, id).Commit())
	server.Inject(tds.Deadlock)
	expectCommitted(t, ledger, id, true)
	for range 2 {
		server.Inject(tds.Deadlock)
		expectOutcome(t, ledger, id, driver.Committed)
		ledger.FallBack(errors.New("asked by a test"))
	}
	server.Inject(tds.Deadlock)
	must(t, ledger.Check(t.Context()))
	server.Inject(tds.Deadlock)
	forget(t, ledger, id)
	expectOutcome(t, ledger, id, driver.RolledBack)
}

func TestDeadlocksWithoutEndAreAnError(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	for range 100 {
		server.Inject(tds.Deadlock)
	}
	if _, _, err := ledger.Committed(t.Context(), []uuid.UUID{newID()}); err == nil {
		t.Error("there is no error")
	}
}

// The transaction is lost, so no statement can be tried again in it.
func TestTheVictimsRecordIsAnErrorAndItsTransactionRolledBack(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	first, second := newID(), newID()
	tx := recorded(t, ledger, first)
	server.Inject(tds.Deadlock)
	if err := ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(second)); err == nil {
		t.Error("there is no error")
	}
	expectOutcome(t, ledger, first, driver.RolledBack)
	if err := tx.Commit(); err == nil {
		t.Error("the victim is committed")
	}
	expectOutcome(t, ledger, second, driver.RolledBack)
}

func TestTheLedgerKnowsTheOutcomeOfACommitWithoutAnswer(t *testing.T) {
	for fault, want := range map[tds.Fault]driver.Outcome{
		tds.DropBeforeCommit: driver.RolledBack,
		tds.DropAfterCommit:  driver.Committed,
	} {
		t.Run(want.String(), func(t *testing.T) {
			server, ledger := onStandIn(t, nil)
			id := newID()
			tx := recorded(t, ledger, id)
			server.Inject(fault)
			if err := tx.Commit(); err == nil {
				t.Error("the commit says nothing")
			}
			expectOutcome(t, ledger, id, want)
		})
	}
}

// An incomplete answer is no outcome.
func TestAnAnswerThatBreaksOffIsAnError(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	id := newID()
	must(t, recorded(t, ledger, id).Commit())
	server.Inject(tds.DropInResult)
	if found, _, err := ledger.Committed(t.Context(), []uuid.UUID{id}); err == nil || found != nil {
		t.Errorf("look up: %v, %v", found, err)
	}
	server.Inject(tds.DropInResult)
	if outcome, _, err := ledger.Settle(t.Context(), id, patience); err == nil || outcome != driver.StillOpen {
		t.Errorf("settle: %q, %v", outcome, err)
	}
	expectOutcome(t, ledger, id, driver.Committed)
}

// The driver drops a connection when a deadline passes, so no deadline may reach it.
func TestADeadlineThatPassesCostsNoConnection(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		db := connect(t, address)
		db.SetMaxOpenConns(1)
		ledger := open(t, db)
		spid := func() (n int) {
			must(t, db.QueryRowContext(t.Context(), "SELECT @@SPID").Scan(&n))
			return n
		}
		before := spid()
		tx := begin(t, connect(t, address), nil)
		execute(t, tx, "ALTER TABLE bridge_identity SET (LOCK_ESCALATION = DISABLE)") // every statement on it waits
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := ledger.Check(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("check: %v, must be %v", err, context.DeadlineExceeded)
		}
		must(t, tx.Rollback())
		if after := spid(); after != before {
			t.Errorf("the session was %d, is %d", before, after)
		}
	})
}

// The driver's text for such an error is only that the server had one.
func TestAnErrorThatEndsTheConnectionIsNamed(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	server.Inject(tds.Severe)
	_, _, err := ledger.Settle(t.Context(), newID(), patience)
	if err == nil || !strings.Contains(err.Error(), "currently busy") || !strings.Contains(err.Error(), "40501") {
		t.Errorf("settle: %v", err)
	}
	if !new(sqlserver.Inbox).Transient(err) {
		t.Errorf("%v is not transient", err)
	}
	expectOutcome(t, ledger, newID(), driver.RolledBack) // over another connection
}
