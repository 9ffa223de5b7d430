package parts

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // driver
	"github.com/jmoiron/sqlx"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	bridgemysql "github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
)

// A Database has the differences between the kinds of databases that the processes use.
type Database struct {
	Dialect migrate.Dialect

	driver string
	native bool // pgx can open it too
	dsn    func(*url.URL) string
	ledger func(context.Context, *sql.DB) (driver.Ledger, error)
	inbox  func(context.Context, *sql.DB) (driver.Inbox, error)
	// shortLockTimeout shortens the transaction's waits for a lock.
	shortLockTimeout string
}

var databases = map[string]Database{
	"postgres": {
		Dialect:          migrate.PostgreSQL,
		driver:           "pgx",
		native:           true,
		dsn:              (*url.URL).String,
		ledger:           func(ctx context.Context, db *sql.DB) (driver.Ledger, error) { return postgres.Open(ctx, db) },
		inbox:            func(ctx context.Context, db *sql.DB) (driver.Inbox, error) { return postgres.OpenInbox(ctx, db) },
		shortLockTimeout: `SET LOCAL lock_timeout = '100ms'`,
	},
	"mysql": {
		Dialect: migrate.MySQL,
		driver:  "mysql",
		dsn:     mysqlDSN,
		ledger:  func(ctx context.Context, db *sql.DB) (driver.Ledger, error) { return bridgemysql.Open(ctx, db) },
		inbox:   func(ctx context.Context, db *sql.DB) (driver.Inbox, error) { return bridgemysql.OpenInbox(ctx, db) },
		// The time-out is in whole seconds and applies to the session, so also to its later
		// transactions.
		shortLockTimeout: `SET SESSION innodb_lock_wait_timeout = 1`,
	},
}

// mysqlDSN converts a mysql://user@host:port/database URL into the driver's form.
func mysqlDSN(address *url.URL) string {
	config := mysql.NewConfig()
	config.User = address.User.Username()
	config.Net, config.Addr = "tcp", address.Host
	config.DBName = strings.TrimPrefix(address.Path, "/")
	config.ParseTime = true
	return config.FormatDSN()
}

// OpenDatabase opens the database of a postgres:// or mysql:// URL.
func OpenDatabase(address string) (*sql.DB, Database, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, Database{}, fmt.Errorf("parse address: %w", err)
	}
	d, ok := databases[parsed.Scheme]
	if !ok {
		return nil, Database{}, fmt.Errorf("open database: no database is known as %q", parsed.Scheme)
	}
	db, err := sql.Open(d.driver, d.dsn(parsed))
	if err != nil {
		return nil, Database{}, fmt.Errorf("open database: %w", err)
	}
	return db, d, nil
}

// Text returns a statement, written with a ? for each argument, in the database's syntax.
func (d Database) Text(statement string) string {
	return sqlx.Rebind(sqlx.BindType(d.driver), statement)
}
