package sqlserver_test

import (
	"context"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/tds"
)

func TestAHealthyDatabaseIsWell(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		ledger := open(t, connect(t, address))
		ledgertest.Well(t, sqlserver.Inspect(ledger))
	})
}

// An open transaction hides no row of others from the counts and lists of carried messages, whether
// READPAST passes over its rows or not.
func TestCarriedRowsAreReadInEachMode(t *testing.T) {
	inEachMode(t, func(t *testing.T, address string) {
		ledger := open(t, connect(t, address))
		ledgertest.ReadsCarried(t, ledger, sqlserver.Inspect(ledger), nil)
	})
}

// Each fault that the stand-in can have is found by its check.
func TestDiagnose(t *testing.T) {
	for name, c := range map[string]struct {
		options    tds.Options
		statements []string
		denied     string
		replicated tds.Replication
		failOver   bool
		check      string
		level      inspect.Level
		says       string
	}{
		"a copy":                  {statements: []string{"UPDATE bridge_identity SET [identity] = NEWID()"}, check: "ledger", level: inspect.Error, says: "identity"},
		"delayed durability":      {statements: []string{"ALTER DATABASE CURRENT SET DELAYED_DURABILITY = ALLOWED"}, check: "durability", level: inspect.Error, says: "ALLOWED"},
		"an old level":            {statements: []string{"ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL = 110"}, check: "compatibility level", level: inspect.Error, says: "110"},
		"a key of strings":        {statements: []string{"DROP TABLE bridge_ledger", "CREATE TABLE bridge_ledger (id nvarchar(36) NOT NULL PRIMARY KEY)"}, check: "ledger", level: inspect.Error, says: "uniqueidentifier"},
		"escalation":              {statements: []string{"ALTER TABLE bridge_ledger SET (LOCK_ESCALATION = TABLE)"}, check: "lock escalation", level: inspect.Warning, says: "TABLE"},
		"optimized locking":       {options: tds.Options{OptimizedLocking: true}, check: "optimized locking", level: inspect.OK, says: "on"},
		"no page locks":           {check: "page locks", level: inspect.OK, says: "cannot be reorganized"},
		"page locks":              {statements: []string{"ALTER INDEX ALL ON bridge_ledger SET (ALLOW_PAGE_LOCKS = ON)"}, check: "page locks", level: inspect.Warning, says: "2 indexes"},
		"a secondary":             {failOver: true, check: "primary", level: inspect.Error, says: "READ_ONLY"},
		"hints ignored":           {options: tds.Options{Babelfish: true}, check: "lock hints", level: inspect.Warning, says: "Babelfish"},
		"unknown durability":      {options: tds.Options{Babelfish: true}, check: "durability", level: inspect.Unknown, says: "synchronous_commit"},
		"one-way":                 {replicated: tds.OneWay, check: "more than one primary", level: inspect.OK, says: "no replication"},
		"peer-to-peer":            {replicated: tds.PeerToPeer, check: "more than one primary", level: inspect.Error, says: "peer to peer"},
		"merge replication":       {replicated: tds.Merge, check: "more than one primary", level: inspect.Error, says: "merge"},
		"published":               {replicated: tds.OneWay, denied: "SELECT ON syspublications", check: "more than one primary", level: inspect.Warning, says: "may not see"},
		"an old server":           {options: tds.Options{Version: "13.0.1601.5"}, check: "server version", level: inspect.OK, says: "13.0"},
		"others unseen":           {denied: "VIEW SERVER PERFORMANCE STATE", check: "holders of a row", level: inspect.Warning, says: "may not see"},
		"others unseen, 2019":     {options: tds.Options{Version: "15.0.4355.3"}, denied: "VIEW SERVER PERFORMANCE STATE", check: "holders of a row", level: inspect.Warning, says: "may not see"},
		"no such view":            {options: tds.Options{Babelfish: true}, denied: "SELECT ON sys.dm_tran_locks", check: "holders of a row", level: inspect.Warning, says: "may not see"},
		"age unseen":              {denied: "VIEW SERVER PERFORMANCE STATE", check: "oldest open transaction", level: inspect.Unknown, says: "may not see"},
		"a security policy":       {denied: "ROWS ON bridge_ledger", check: "row-level security", level: inspect.Warning, says: "looks rolled back"},
		"no right to delete":      {denied: "DELETE ON bridge_ledger", check: "rights of a verifier", level: inspect.Error, says: "DELETE ON bridge_ledger"},
		"no right to stage again": {denied: "UPDATE ON bridge_ledger", check: "rights to stage again", level: inspect.Error, says: "UPDATE ON bridge_ledger: a carried message whose staged copy is lost"},
		"no right to sweep":       {denied: "UPDATE ON bridge_watermark", check: "rights to sweep", level: inspect.Warning, says: "UPDATE ON bridge_watermark"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, ledger := onStandIn(t, &c.options)
			for _, statement := range c.statements {
				execute(t, ledger.DB(), statement)
			}
			if c.denied != "" {
				server.Deny(c.denied)
			}
			server.Replicate("bridge_ledger", c.replicated)
			if c.failOver {
				server.FailOver()
			}
			ledgertest.Finds(t, sqlserver.Inspect(ledger), c.check, c.level, c.says)
		})
	}
}

// Babelfish 4.3 refuses ALTER INDEX ... SET and GRANT VIEW SERVER STATE (measured).
func TestTheAdviceForBabelfishCanBeFollowedThere(t *testing.T) {
	server, ledger := onStandIn(t, &tds.Options{Babelfish: true})
	for _, statement := range []string{"ALTER TABLE bridge_ledger SET (LOCK_ESCALATION = TABLE)", "ALTER INDEX ALL ON bridge_ledger SET (ALLOW_PAGE_LOCKS = ON)"} {
		execute(t, ledger.DB(), statement)
	}
	server.Deny("VIEW SERVER PERFORMANCE STATE")
	found, err := sqlserver.Inspect(ledger).Diagnose(t.Context())
	must(t, err)
	if len(found) == 0 {
		t.Fatal("nothing is found")
	}
	for _, f := range found {
		for _, impossible := range []string{"ALTER INDEX", "LOCK_ESCALATION", "GRANT VIEW SERVER"} {
			if strings.Contains(f.Fix, impossible) {
				t.Errorf("%s: it advises %q", f.Check, f.Fix)
			}
		}
	}
}

func TestAnOwnTableIsDiagnosed(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		db := connect(t, address)
		execute(t, db, "CREATE TABLE orders (id uniqueidentifier NOT NULL PRIMARY KEY)")
		ledger, err := sqlserver.OpenOwnTable(t.Context(), db, bridge.OwnTable{Table: "orders", Column: "id"})
		must(t, err)
		usual := []string{"lock escalation", "page locks"} // the defaults of a new table
		ledgertest.Well(t, sqlserver.InspectOwnTable(ledger), usual...)
		for _, check := range usual {
			ledgertest.Finds(t, sqlserver.InspectOwnTable(ledger), check, inspect.Warning, "")
		}
	})
}

// Only a login with a right on policies sees one.
func TestASecurityPolicyOnAnOwnTableIsDiagnosed(t *testing.T) {
	server, ledger := ordersOnStandIn(t, nil)
	inspector := sqlserver.InspectOwnTable(ledger.(*sqlserver.OwnLedger))
	const check = "row-level security"
	ledgertest.Finds(t, inspector, check, inspect.OK, "sees no security policy")
	server.Deny("ROWS ON orders")
	ledgertest.Finds(t, inspector, check, inspect.Warning, "looks rolled back")
	server.Deny("ALTER ANY SECURITY POLICY")
	ledgertest.Finds(t, inspector, check, inspect.OK, "this login sees no")
}

type diagnoser func(context.Context) ([]inspect.Finding, error)

func (d diagnoser) Diagnose(ctx context.Context) ([]inspect.Finding, error) { return d(ctx) }

func TestAReceiversCommitsAreDiagnosed(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		db := connect(t, address)
		inbox := diagnoser(func(ctx context.Context) ([]inspect.Finding, error) { return sqlserver.DiagnoseInbox(ctx, db) })
		ledgertest.Finds(t, inbox, "durability", inspect.OK, "")
		execute(t, db, "ALTER DATABASE CURRENT SET DELAYED_DURABILITY = ALLOWED")
		ledgertest.Finds(t, inbox, "durability", inspect.Error, "message was acked")
	})
}

// A login without the right to see other sessions gets no holders, and no error.
func TestHoldersWithLeastRights(t *testing.T) {
	for name, version := range map[string]string{"2019": "15.0.4355.3", "2022": "16.0.1000.6"} {
		t.Run(name, func(t *testing.T) { holdersWithLeastRights(t, &tds.Options{Version: version}) })
	}
}

func holdersWithLeastRights(t *testing.T, options *tds.Options) {
	server, ledger := onStandIn(t, options)
	id := newID()
	tx := recorded(t, ledger, id)
	server.Deny("VIEW SERVER PERFORMANCE STATE")
	found, err := sqlserver.Inspect(ledger).Holders(t.Context(), id)
	if err != nil || len(found) > 0 {
		t.Errorf("the holders: %+v, %v", found, err)
	}
	if found, err := sqlserver.Inspect(ledger).OpenTransactions(t.Context(), 0, 10); err != nil || found != nil {
		t.Errorf("the open transactions: %+v, %v", found, err)
	}
	must(t, tx.Rollback())
}
