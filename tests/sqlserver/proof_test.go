package sqlserver_test

import (
	"errors"
	"net/url"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

func TestTheProofFallsBackToTheInsertWhereHintsAreIgnored(t *testing.T) {
	_, ledger := onStandIn(t, &tds.Options{IgnoreHints: true})
	id := newID()
	recorded(t, ledger, id)
	expectOutcome(t, ledger, id, driver.RolledBack) // the wrong outcome that the proof prevents
	for range 2 {
		must(t, prove(t, ledger))
		expectOutcome(t, ledger, id, driver.StillOpen)
	}
}

func TestTheProofDoesNotFallBackWhereHintsAreHeeded(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		ledger := open(t, connect(t, address))
		must(t, prove(t, ledger))
		if !ledger.FallBack(errors.New("asked by a test")) {
			t.Error("the proof has fallen back")
		}
	})
}

func TestTheProofRefusesALedgerWhereNothingWaits(t *testing.T) {
	for name, c := range map[string]struct {
		options tds.Options
		own     bool // of an own table: the fallback would insert into it
	}{
		"hints are ignored":                   {tds.Options{IgnoreHints: true, NeverWait: true}, false},
		"hints are heeded":                    {tds.Options{NeverWait: true}, false},
		"hints are ignored, for an own table": {tds.Options{IgnoreHints: true}, true},
		"nothing waits for an own table":      {tds.Options{IgnoreHints: true, NeverWait: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var ledger driver.Ledger
			if c.own {
				_, ledger = ordersOnStandIn(t, &c.options)
			} else {
				_, ledger = onStandIn(t, &c.options)
			}
			for range 2 {
				if _, err := proof.Prove(t.Context(), ledger); !errors.Is(err, bridge.ErrProof) {
					t.Errorf("prove: %v, must be %v", err, bridge.ErrProof)
				}
			}
			if c.own && ledger.FallBack(bridge.ErrProof) {
				t.Error("there is another way")
			}
		})
	}
}

// It is undocumented that READPAST skips a row that only its transaction's ID protects.
func TestAnOpenRowHidesNoOtherWithOptimizedLocking(t *testing.T) {
	server := servertest.SQLServerStandIn(t, &tds.Options{OptimizedLocking: true})
	for snapshot, want := range map[bool]error{true: nil, false: bridge.ErrProof} {
		ledger := open(t, connect(t, newDatabase(t, server.URL("master"), snapshot)))
		if _, err := proof.Prove(t.Context(), ledger); !errors.Is(err, want) {
			t.Errorf("READ_COMMITTED_SNAPSHOT %t: the proof says %v, must say %v", snapshot, err, want)
		}
		if want != nil {
			continue
		}
		held, done := newID(), newID()
		recorded(t, ledger, held)
		must(t, recorded(t, ledger, done).Commit())
		found, _, err := ledger.Committed(t.Context(), []uuid.UUID{held, done})
		must(t, err)
		if !slices.Equal(found, []uuid.UUID{done}) {
			t.Errorf("the lookup finds %v, must find %s", found, done)
		}
	}
}

// On a real server, to change the setting one must first end all connections to the database.
func TestTheLookupFollowsTheSnapshotSetting(t *testing.T) {
	_, ledger := onStandIn(t, nil)
	for _, snapshot := range []string{"OFF", "ON", "OFF"} {
		execute(t, ledger.DB(), "ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT "+snapshot)
		held, done := newID(), newID()
		recorded(t, ledger, held)
		must(t, recorded(t, ledger, done).Commit())
		lookUp := func() []uuid.UUID {
			found, _, err := ledger.Committed(t.Context(), []uuid.UUID{held, done})
			must(t, err)
			return found
		}
		lookUp() // may find the setting changed
		if found := lookUp(); !slices.Equal(found, []uuid.UUID{done}) {
			t.Errorf("READ_COMMITTED_SNAPSHOT %s: the lookup finds %v, must find %s", snapshot, found, done)
		}
	}
}

func TestAReadOnlyConnectionIsRefused(t *testing.T) {
	server := servertest.SQLServerStandIn(t, nil)
	address, err := url.Parse(newDatabase(t, server.URL("master"), true))
	must(t, err)
	query := address.Query()
	query.Set("ApplicationIntent", "ReadOnly")
	address.RawQuery = query.Encode()
	if _, err := sqlserver.Open(t.Context(), connect(t, address.String())); !errors.Is(err, bridge.ErrNotPrimary) {
		t.Errorf("open: %v, must be %v", err, bridge.ErrNotPrimary)
	}
}

// The pool may connect to a secondary while the verifier runs. There the row of an open
// transaction would look rolled back.
func TestASecondarySettlesNothing(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	execute(t, ledger.DB(), ordersTable)
	own, err := sqlserver.OpenOwnTable(t.Context(), ledger.DB(), orders)
	must(t, err)
	committed, open, order := newID(), newID(), newID()
	must(t, recorded(t, ledger, committed).Commit())
	recorded(t, ledger, open)
	placed(t, own, order)
	server.FailOver()

	noVerdict := func(ledger driver.Ledger, id uuid.UUID) {
		t.Helper()
		if outcome, _, err := ledger.Settle(t.Context(), id, patience); outcome != driver.StillOpen || !errors.Is(err, bridge.ErrNotPrimary) {
			t.Errorf("settle: %q, %v, must be %q, %v", outcome, err, driver.StillOpen, bridge.ErrNotPrimary)
		}
	}
	noVerdict(ledger, committed)
	noVerdict(ledger, open)
	noVerdict(own, order)
	if _, err := sqlserver.OpenOwnTable(t.Context(), ledger.DB(), orders); !errors.Is(err, bridge.ErrNotPrimary) {
		t.Errorf("open the own table: %v, must be %v", err, bridge.ErrNotPrimary)
	}
	if err := ledger.Check(t.Context()); !errors.Is(err, bridge.ErrNotPrimary) {
		t.Errorf("check: %v, must be %v", err, bridge.ErrNotPrimary)
	}
	if _, err := proof.Prove(t.Context(), ledger); !errors.Is(err, bridge.ErrNotPrimary) || errors.Is(err, bridge.ErrProof) {
		t.Errorf("prove: %v, must be %v", err, bridge.ErrNotPrimary)
	}
	tx := begin(t, ledger.DB(), nil)
	if err := ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(newID())); !errors.Is(err, bridge.ErrNotPrimary) {
		t.Errorf("record: %v, must be %v", err, bridge.ErrNotPrimary)
	}
	expectCommitted(t, ledger, committed, true) // hits may be believed
	// A secondary lags behind, so its watermark may be too low.
	if before, err := ledger.SweptBefore(t.Context()); !before.IsZero() || !errors.Is(err, bridge.ErrNotPrimary) {
		t.Errorf("the watermark: %v, %v, must be %v", before, err, bridge.ErrNotPrimary)
	}

	ledger.FallBack(errors.New("asked by a test"))
	noVerdict(ledger, open) // by the insert
}

func TestAProofEndsWithARestart(t *testing.T) {
	for name, options := range map[string]*tds.Options{"by SELECT": nil, "by INSERT": {IgnoreHints: true}} {
		t.Run(name, func(t *testing.T) {
			server, ledger := onStandIn(t, options)
			proven, err := proof.Prove(t.Context(), ledger)
			must(t, err)
			id := newID()
			tx := recorded(t, ledger, id)
			must(t, tx.Commit())
			for _, known := range []uuid.UUID{id, newID()} {
				_, err = proven.Settle(t.Context(), known, patience)
				must(t, err)
			}
			server.StartedAnew()
			for _, known := range []uuid.UUID{id, newID()} {
				if _, err := proven.Settle(t.Context(), known, patience); !errors.Is(err, bridge.ErrOtherInstance) {
					t.Errorf("settle: %v", err)
				}
				if _, err := proven.Committed(t.Context(), []uuid.UUID{known}); !errors.Is(err, bridge.ErrOtherInstance) {
					t.Errorf("look up: %v", err)
				}
			}
		})
	}
}
