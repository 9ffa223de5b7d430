package sqlserver_test

import (
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

// Babelfish has no number of its own for a missing table.
func TestAnEmptyDatabaseHasNoVersion(t *testing.T) {
	for name, options := range map[string]tds.Options{"SQL Server": {}, "Babelfish": {Babelfish: true}} {
		t.Run(name, func(t *testing.T) {
			db := connect(t, servertest.SQLServerDB(t, servertest.SQLServerStandIn(t, &options).URL("master"), false))
			there, wanted, err := migrate.Version(t.Context(), db, migrate.SQLServer, migrate.LedgerPart)
			if err != nil || there != 0 || wanted == 0 {
				t.Errorf("version %d of %d, %v", there, wanted, err)
			}
		})
	}
}

func TestAMigrationWithoutARightNamesTheRight(t *testing.T) {
	for right, says := range map[string]string{"CREATE TABLE": "GRANT CREATE TABLE", "ALTER ON SCHEMA": "GRANT ALTER ON SCHEMA"} {
		server := servertest.SQLServerStandIn(t, nil)
		db := connect(t, servertest.SQLServerDB(t, server.URL("master"), false))
		server.Deny(right)
		if err := migrate.Ledger(t.Context(), db, migrate.SQLServer); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("without %s: %v", right, err)
		}
	}
}

// A statement that meets a page lock waits for rows that it did not ask for.
func TestIndexesOfRowsThatOthersLockHaveNoPageLocks(t *testing.T) {
	var script strings.Builder
	for _, part := range []migrate.Part{migrate.LedgerPart, migrate.InboxPart} {
		must(t, migrate.Print(&script, migrate.SQLServer, part, 0))
	}
	indexes := 0
	for _, line := range strings.Split(script.String(), "\n") {
		if !strings.Contains(line, "CREATE INDEX") {
			continue
		}
		indexes++
		if !strings.Contains(line, "ALLOW_PAGE_LOCKS = OFF") {
			t.Error(line)
		}
	}
	if indexes == 0 {
		t.Error("the script has no index")
	}
}
