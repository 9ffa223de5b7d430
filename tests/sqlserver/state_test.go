package sqlserver_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/proof"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestAnUnsuitableDatabaseIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		statements []string
		says       string
		is         error // bridge.ErrNoSchema: no error may advise to drop tables that may hold a ledger
	}{
		"delayed durability": {
			[]string{"ALTER DATABASE CURRENT SET DELAYED_DURABILITY = ALLOWED"}, "delayed durability is ALLOWED", nil},
		"an old compatibility level": {
			[]string{"ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL = 110"}, "compatibility level is 110", nil},
		"no ledger": {
			[]string{"DROP TABLE bridge_ledger"}, "migrate.Ledger", bridge.ErrNoSchema},
		"a key of strings": {
			[]string{"DROP TABLE bridge_ledger", "CREATE TABLE bridge_ledger (id nvarchar(36) NOT NULL PRIMARY KEY)"},
			"must be uniqueidentifier", bridge.ErrNoSchema},
		"no unique key": {
			[]string{"DROP TABLE bridge_ledger", "CREATE TABLE bridge_ledger (id uniqueidentifier NOT NULL)"},
			"no unique key", bridge.ErrNoSchema},
		"a unique key of two columns": {
			[]string{"DROP TABLE bridge_ledger", "CREATE TABLE bridge_ledger (id uniqueidentifier NOT NULL, n int NOT NULL, PRIMARY KEY (id, n))"},
			"no unique key", bridge.ErrNoSchema},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := connect(t, newDatabase(t, servertest.SQLServer(t, nil), true))
			ledger := open(t, db)
			for _, statement := range c.statements {
				execute(t, db, statement)
			}
			_, openErr := sqlserver.Open(t.Context(), db)
			for doing, err := range map[string]error{"open": openErr, "check": ledger.Check(t.Context()), "prove": prove(t, ledger)} {
				if err == nil || !strings.Contains(err.Error(), c.says) || c.is != nil && (!errors.Is(err, c.is) || strings.Contains(err.Error(), "drop")) {
					t.Errorf("%s: %v, must say %q, and not to drop anything", doing, err, c.says)
				}
			}
		})
	}
}

func TestAnErrorNamesTheMissingRight(t *testing.T) {
	sweep := func(t *testing.T, ledger *sqlserver.Ledger) error {
		must(t, recorded(t, ledger, newID()).Commit())
		execute(t, ledger.DB(), "UPDATE bridge_ledger SET recorded_at = DATEADD(hour, -2, recorded_at)")
		_, err := ledger.Sweep(t.Context(), time.Hour, 10)
		return err
	}
	for _, c := range []struct {
		right string
		do    func(t *testing.T, ledger *sqlserver.Ledger) error // nil: open the ledger
		judge bool                                               // the proof needs the right too
	}{
		{"SELECT ON bridge_identity", nil, false},
		{"SELECT ON bridge_ledger_version", nil, false},
		{"INSERT ON bridge_ledger", func(t *testing.T, ledger *sqlserver.Ledger) error {
			return ledger.Record(t.Context(), bridge.SQL(begin(t, ledger.DB(), nil)), driver.Plain(newID()))
		}, true},
		{"SELECT ON bridge_ledger", func(t *testing.T, ledger *sqlserver.Ledger) error {
			_, _, err := ledger.Settle(t.Context(), newID(), time.Second)
			return err
		}, true},
		{"DELETE ON bridge_ledger", func(t *testing.T, ledger *sqlserver.Ledger) error {
			_, err := ledger.Forget(t.Context(), []uuid.UUID{newID()})
			return err
		}, true},
		{"SELECT ON bridge_ledger", func(t *testing.T, ledger *sqlserver.Ledger) error {
			_, _, err := ledger.Due(t.Context(), driver.DueRow{}, 10)
			return err
		}, true},
		{"UPDATE ON bridge_ledger", func(t *testing.T, ledger *sqlserver.Ledger) error {
			_, err := ledger.Claim(t.Context(), []driver.DueRow{{ID: newID()}})
			return err
		}, false},
		{"UPDATE ON bridge_ledger", func(t *testing.T, ledger *sqlserver.Ledger) error {
			return ledger.Touch(t.Context(), []uuid.UUID{newID()})
		}, false},
		{"UPDATE ON bridge_watermark", sweep, false},
		{"DELETE ON bridge_ledger", sweep, true},
		{"SELECT ON bridge_watermark", func(t *testing.T, ledger *sqlserver.Ledger) error {
			_, err := ledger.SweptBefore(t.Context())
			return err
		}, false},
	} {
		t.Run(c.right, func(t *testing.T) {
			server := servertest.SQLServerStandIn(t, nil)
			db := connect(t, newDatabase(t, server.URL("master"), true))
			server.Deny(c.right)
			ledger, err := sqlserver.Open(t.Context(), db)
			if c.do != nil {
				must(t, err)
				err = c.do(t, ledger)
			}
			if c.judge {
				if _, err := proof.Prove(t.Context(), ledger); err == nil || errors.Is(err, bridge.ErrProof) {
					t.Errorf("prove: %v", err)
				}
			}
			verb, table, _ := strings.Cut(c.right, " ON ")
			if err == nil || !strings.Contains(err.Error(), "GRANT") || !strings.Contains(err.Error(), verb) || !strings.Contains(err.Error(), table) {
				t.Errorf("without %s: %v", c.right, err)
			}
		})
	}
}

func TestAWrongLoginGivesNoPasswordAway(t *testing.T) {
	server := servertest.SQLServerStandIn(t, nil)
	address := strings.Replace(server.URL("master"), "sa:", "sa:wrong-", 1)
	_, err := sqlserver.Open(t.Context(), connect(t, address))
	if err == nil || !strings.Contains(err.Error(), "Login failed") || strings.Contains(err.Error(), "wrong-") {
		t.Errorf("open: %v", err)
	}
	if err := migrate.Ledger(t.Context(), connect(t, address), migrate.SQLServer); err == nil || strings.Contains(err.Error(), "wrong-") {
		t.Errorf("migrate: %v", err)
	}
}

func TestIDsReadTheSameInTheDatabase(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		db := connect(t, address)
		ledger := open(t, db)
		id := newID()
		must(t, recorded(t, ledger, id).Commit())
		var text string
		must(t, db.QueryRowContext(t.Context(), "SELECT CAST(id AS nvarchar(36)) FROM bridge_ledger").Scan(&text))
		if !strings.EqualFold(text, id.String()) {
			t.Errorf("the row reads %s, must read %s", text, id)
		}
	})
}

// The driver can be configured to swap the bytes of UUIDs itself.
func TestTheDriversGUIDConversionChangesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		plain, converting := open(t, connect(t, address)), open(t, connect(t, address+"&guid+conversion=true"))
		if plain.Identity() != converting.Identity() {
			t.Fatalf("the identity is %s and %s", plain.Identity(), converting.Identity())
		}
		id := newID()
		must(t, recorded(t, plain, id).Commit())
		expectCommitted(t, converting, id, true)
		expectOutcome(t, converting, id, driver.Committed)
	})
}
