package sqlserver_test

import (
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

// Azure SQL Database has another DB_ID() and reports version 12. So does Babelfish, which does
// not report its durability either.
func TestAzureAndBabelfishAreRecognized(t *testing.T) {
	for name, options := range map[string]tds.Options{
		"Azure SQL Database": {Azure: true},
		"Babelfish":          {Babelfish: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, ledger := onStandIn(t, &options)
			must(t, prove(t, ledger))
			id := newID()
			tx := recorded(t, ledger, id)
			expectOutcome(t, ledger, id, driver.StillOpen)
			must(t, tx.Commit())
			expectOutcome(t, ledger, id, driver.Committed)
			must(t, migrate.Inbox(t.Context(), ledger.DB(), migrate.SQLServer))
			if _, err := sqlserver.OpenInbox(t.Context(), ledger.DB()); err != nil {
				t.Errorf("open inbox: %v", err)
			}
			findings, err := sqlserver.Inspect(ledger).Diagnose(t.Context())
			must(t, err)
			for _, f := range findings {
				if f.Level == inspect.Error {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

// The server lacks DATEDIFF_BIG.
func TestSQLServer2014IsRefused(t *testing.T) {
	server := servertest.SQLServerStandIn(t, &tds.Options{Version: "12.0.6024.0"})
	address := servertest.SQLServerDB(t, server.URL("master"), true)
	db := connect(t, address)
	must(t, migrate.Ledger(t.Context(), db, migrate.SQLServer))
	must(t, migrate.Inbox(t.Context(), db, migrate.SQLServer))
	_, ledger := sqlserver.Open(t.Context(), db)
	_, inbox := sqlserver.OpenInbox(t.Context(), db)
	for doing, err := range map[string]error{"open ledger": ledger, "open inbox": inbox} {
		if err == nil || !strings.Contains(err.Error(), "12.0.6024.0") || !strings.Contains(err.Error(), "2016") {
			t.Errorf("%s: %v, must name the version and the one that will do", doing, err)
		}
	}
}

// The doctor tries rights instead of inferring them from their names.
func TestTheDoctorTriesWhetherOthersCanBeSeen(t *testing.T) {
	for name, c := range map[string]struct {
		options tds.Options
		denied  string
		level   inspect.Level
	}{
		"VIEW SERVER PERFORMANCE STATE is enough":             {tds.Options{}, "VIEW SERVER STATE", inspect.OK},
		"VIEW DATABASE STATE may not be enough, on Azure SQL": {tds.Options{Azure: true}, "VIEW SERVER PERFORMANCE STATE", inspect.Warning},
	} {
		t.Run(name, func(t *testing.T) {
			server, ledger := onStandIn(t, &c.options)
			server.Deny(c.denied)
			ledgertest.Finds(t, sqlserver.Inspect(ledger), "holders of a row", c.level, "")
		})
	}
}

// A wait for a latch has no holder: 'sys.dm_exec_requests', blocking_session_id -4, -5.
func TestAWaitForALatchIsNoHolder(t *testing.T) {
	server, ledger := onStandIn(t, nil)
	id := newID()
	tx := recorded(t, ledger, id)
	server.Inject(tds.LatchWait)
	found, err := sqlserver.Inspect(ledger).Holders(t.Context(), id)
	if err != nil || len(found) != 1 || strings.HasPrefix(found[0].Session, "-") ||
		found[0].State != "sleeping" || !strings.Contains(found[0].Statement, "INSERT INTO bridge_ledger") {
		t.Errorf("the holders: %+v, %v", found, err)
	}
	must(t, tx.Rollback())
}
