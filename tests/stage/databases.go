package stage

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"slices"
	"testing"

	_ "github.com/go-sql-driver/mysql" // driver
	_ "github.com/jackc/pgx/v5/stdlib" // driver
	_ "modernc.org/sqlite"             // driver

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A Database is a kind of database, with functions that create and open one.
type Database struct {
	Name string
	URL  func(t testing.TB) string
	Open func(ctx context.Context, url string) (*sql.DB, driver.Ledger, error)
}

// Databases are the kinds that accept any SQL of a test.
var Databases = []Database{Postgres, SQLite}

// Everywhere is Databases and SQLServer, for tests that use only SQL that the stand-in recognizes.
var Everywhere = append(slices.Clip(Databases), SQLServer)

// Postgres is a database in the shared private server.
var Postgres = Database{
	Name: "postgres",
	URL:  servertest.PostgresDB,
	Open: open("pgx", migrate.PostgreSQL, postgres.Open),
}

// SQLite is a database in a file.
var SQLite = Database{
	Name: "sqlite",
	URL: func(t testing.TB) string {
		return "file:" + filepath.Join(t.TempDir(), "stage.db") + "?_pragma=journal_mode(wal)&_pragma=busy_timeout(120000)&_txlock=immediate"
	},
	Open: open("sqlite", migrate.SQLite, sqlite.Open),
}

// MariaDB is a database in the shared private server, which may be a MySQL.
var MariaDB = Database{
	Name: "mariadb",
	URL:  servertest.MariaDBDatabase,
	Open: open("mysql", migrate.MySQL, mysql.Open),
}

// SQLServer is a database with READ_COMMITTED_SNAPSHOT, as on Azure SQL. It is in the real SQL
// Server if one is given, and otherwise in a stand-in, which recognizes few statements.
var SQLServer = Database{
	Name: "sqlserver",
	URL: func(t testing.TB) string {
		address, err := url.Parse(servertest.SQLServerDB(t, servertest.SQLServer(t, nil), true))
		if err != nil {
			t.Fatalf("parse database: %v", err)
		}
		// For a test's own queries of UUIDs; the ledger does not need it.
		query := address.Query()
		query.Set("guid conversion", "true")
		address.RawQuery = query.Encode()
		return address.String()
	},
	Open: open("sqlserver", migrate.SQLServer, sqlserver.Open),
}

// open returns a Database's Open, which creates the tables and opens the ledger.
func open[L driver.Ledger](name string, dialect migrate.Dialect, ledger func(context.Context, *sql.DB) (L, error)) func(context.Context, string) (*sql.DB, driver.Ledger, error) {
	return func(ctx context.Context, url string) (*sql.DB, driver.Ledger, error) {
		db, err := sql.Open(name, url)
		if err != nil {
			return nil, nil, err
		}
		if err := migrate.Ledger(ctx, db, dialect); err != nil {
			return nil, nil, errors.Join(err, db.Close())
		}
		l, err := ledger(ctx, db)
		if err != nil {
			return nil, nil, errors.Join(err, db.Close())
		}
		return db, l, nil
	}
}
