package stage

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"slices"
	"testing"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// Everywhere is Databases and SQLServer, for tests that say nothing in SQL but what
// the stand-in knows.
var Everywhere = append(slices.Clip(Databases), SQLServer)

// SQLServer is a database with READ_COMMITTED_SNAPSHOT, as on Azure SQL, in the real
// SQL Server if there is one, and else in a stand-in, which knows few statements.
var SQLServer = Database{
	Name: "sqlserver",
	URL: func(t testing.TB) string {
		address, err := url.Parse(servertest.SQLServerDB(t, servertest.SQLServer(t, nil), true))
		if err != nil {
			t.Fatalf("parse database: %v", err)
		}
		// For what a test itself reads of UUIDs; the ledger does without.
		query := address.Query()
		query.Set("guid conversion", "true")
		address.RawQuery = query.Encode()
		return address.String()
	},
	Open: func(ctx context.Context, url string) (*sql.DB, driver.Ledger, error) {
		db, err := sql.Open("sqlserver", url)
		if err != nil {
			return nil, nil, err
		}
		if err := migrate.Ledger(ctx, db, migrate.SQLServer); err != nil {
			return nil, nil, errors.Join(err, db.Close())
		}
		ledger, err := sqlserver.Open(ctx, db)
		if err != nil {
			return nil, nil, errors.Join(err, db.Close())
		}
		return db, ledger, nil
	},
}
