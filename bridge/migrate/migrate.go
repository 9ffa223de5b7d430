package migrate

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/pressly/goose/v3"

	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// A Dialect names the kind of a database.
type Dialect string

// The databases with migrations.
const (
	PostgreSQL Dialect = "postgres"
	SQLite     Dialect = "sqlite"
	MySQL      Dialect = "mysql"     // and MariaDB
	SQLServer  Dialect = "sqlserver" // and Azure SQL
)

// attempts is how often a migration is tried, with pauses that begin at pause: an attempt that
// fails because of another migrator finds the other's work done the next time.
const (
	attempts = 5
	pause    = 50 * time.Millisecond
)

// noRights is PostgreSQL's SQLSTATE for a login without the right to make tables.
const noRights = "42501"

//go:embed sql
var files embed.FS

// Ledger creates the ledger's tables in db, or updates them to the version of this release. The
// ledger's identity is made once, with its tables. After a crash, call it again; any number of
// processes may call it at once (see the package comment). It returns the database's errors after
// some attempts. On PostgreSQL and SQL Server, a login without the right to create tables gets an
// error that names the right, after some seconds.
func Ledger(ctx context.Context, db *sql.DB, dialect Dialect) error {
	return Schema("").Ledger(ctx, db, dialect)
}

// Inbox creates or updates the inbox's tables, as Ledger does the ledger's. The inbox is in the
// receiver's database, which may be another one.
func Inbox(ctx context.Context, db *sql.DB, dialect Dialect) error {
	return Schema("").Inbox(ctx, db, dialect)
}

// Tables does the same for the program's own tables. Their migrations are in the folder
// sql/DIALECT/PART of files; bridge_PART_version records the applied ones. On MySQL it must be
// possible to run every statement again. On other databases the first migration must make the
// version number unique, as in the migrations of this package.
func Tables(ctx context.Context, db *sql.DB, dialect Dialect, files fs.FS, part string) error {
	dir, err := fs.Sub(files, path.Join("sql", string(dialect), part))
	if err != nil {
		return fmt.Errorf("migrate %s: %w", part, err)
	}
	return repeatedly(ctx, part, schema.Name{}, func() error { return attempt(ctx, db, dialect, dir, Part(part).versions()) })
}

// repeatedly calls attempt until it succeeds, or fails permanently.
func repeatedly(ctx context.Context, part string, in schema.Name, attempt func() error) error {
	// Only MySQL has a lock: goose's lock is held by the session, which a pooler may change between
	// two statements, and there is none for SQLite. Elsewhere the unique version number decides,
	// and the migrator that came second tries again.
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval = pause
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := attempt()
		if fix := missingRight(err, in); fix != "" { // another attempt would not change that
			err = backoff.Permanent(fmt.Errorf("%w; migrate with the login of the tables' owner, or %s", err, fix))
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxTries(attempts))
	if err != nil {
		return fmt.Errorf("migrate %s: %w", part, err)
	}
	return nil
}

func attempt(ctx context.Context, db *sql.DB, dialect Dialect, dir fs.FS, versions string) error {
	options := []goose.ProviderOption{goose.WithTableName(versions), goose.WithDisableGlobalRegistry(true)}
	if dialect == MySQL {
		options = append(options, goose.WithSessionLocker(mysqlLock{versions}))
	}
	provider, err := goose.NewProvider(gooseDialect[dialect], db, dir, options...)
	if err != nil {
		return backoff.Permanent(err)
	}
	if dialect == MySQL {
		err = mysqlLock{versions}.makeTable(ctx, db)
	}
	if err == nil {
		_, err = provider.Up(ctx)
	}
	return err
}

// missingRight returns the fix if err means that the login may not make tables, or "".
func missingRight(err error, in schema.Name) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) && state.SQLState() == noRights {
		if in.IsSet() {
			return "GRANT USAGE, CREATE ON SCHEMA " + in.Quoted() + " TO this login"
		}
		return "grant this login CREATE on the schema"
	}
	switch mssql.Number(err) {
	case mssql.NoDatabaseRight:
		return "GRANT CREATE TABLE to this login's user"
	case mssql.NoSchemaRight:
		if in.IsSet() {
			return "GRANT ALTER ON SCHEMA::" + in.Quoted() + " to this login's user"
		}
		return "GRANT ALTER ON SCHEMA::dbo (or the login's default schema) to this login's user"
	}
	return ""
}

var gooseDialect = map[Dialect]goose.Dialect{
	PostgreSQL: goose.DialectPostgres,
	SQLite:     goose.DialectSQLite3,
	SQLServer:  goose.DialectMSSQL,
	MySQL:      goose.DialectMySQL,
}
