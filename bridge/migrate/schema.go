package migrate

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/cenkalti/backoff/v5"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// A Schema names the schema of the bridge's tables, in the catalogue of PostgreSQL or SQL Server:
//
//	err = migrate.Schema("messaging").Ledger(ctx, db, migrate.PostgreSQL)
//
// It must exist: an administrator creates it. Open the ledger and the inbox with the Schema of
// package postgres or sqlserver. The schema "" is found by the login's settings: search_path, or
// its default schema.
type Schema string

// Check returns an error if the schema cannot hold the bridge's tables in a database of this kind.
func (s Schema) Check(dialect Dialect) error {
	_, err := s.in(dialect)
	return err
}

// In returns a statement with the schema before the names of the bridge's tables. Check must accept
// the Schema.
func (s Schema) In(dialect Dialect, statement string) string {
	return s.Statements(dialect)(statement)
}

// Statements returns a function like In that also puts the schema before tables, the names of a
// program's own tables. It caches its results, so a statement must contain no values.
func (s Schema) Statements(dialect Dialect, tables ...string) func(statement string) string {
	in, _ := s.in(dialect)
	return in.With(tables...).In
}

// Usage returns the right on the schema that a login on PostgreSQL needs before it sees the tables,
// in the form between GRANT and TO. It is empty on other databases and for the Schema "".
func (s Schema) Usage(dialect Dialect) string {
	in, err := s.in(dialect)
	if err != nil || dialect != PostgreSQL || !in.IsSet() {
		return ""
	}
	return "USAGE ON SCHEMA " + in.Quoted()
}

func (s Schema) in(dialect Dialect) (schema.Name, error) {
	switch dialect {
	case PostgreSQL:
		return schema.PostgreSQL(string(s))
	case SQLServer:
		return schema.SQLServer(string(s))
	}
	switch {
	case s == "":
	case dialect == MySQL:
		return schema.Name{}, fmt.Errorf("schema %q: a schema of MySQL and MariaDB is a database: name it in the URL, and no schema", s)
	default:
		return schema.Name{}, fmt.Errorf("schema %q: %s has no schemas: name none", s, dialect)
	}
	return schema.Name{}, nil
}

// Ledger creates or updates the ledger's tables in the schema, as the function Ledger does.
func (s Schema) Ledger(ctx context.Context, db *sql.DB, dialect Dialect) error {
	return s.migrate(ctx, db, dialect, LedgerPart)
}

// Inbox creates or updates the inbox's tables in the schema, as the function Inbox does.
func (s Schema) Inbox(ctx context.Context, db *sql.DB, dialect Dialect) error {
	return s.migrate(ctx, db, dialect, InboxPart)
}

// Tables creates or updates a program's own tables in the schema, as the function Tables does. tables
// are the names of the tables in the statements. Each migration is one batch.
func (s Schema) Tables(ctx context.Context, db *sql.DB, dialect Dialect, files fs.FS, part string, tables ...string) error {
	in, err := s.in(dialect)
	if err != nil {
		return fmt.Errorf("migrate %s: %w", part, err)
	}
	return s.tables(ctx, db, dialect, files, Part(part), in.With(append(slices.Clone(tables), Part(part).versions())...))
}

// Version returns the version of a part in the schema, as the function Version does.
func (s Schema) Version(ctx context.Context, db *sql.DB, dialect Dialect, part Part) (there, wanted int64, err error) {
	in, err := s.in(dialect)
	if err != nil {
		return 0, 0, err
	}
	return version(ctx, db, dialect, part, in)
}

// Print writes the statements for tables in the schema, as the function Print does.
func (s Schema) Print(w io.Writer, dialect Dialect, part Part, from int64) error {
	in, err := s.in(dialect)
	if err != nil {
		return err
	}
	return printScript(w, dialect, part, from, in)
}

// NewIdentity gives the ledger in the schema a new identity, as the function NewIdentity does.
func (s Schema) NewIdentity(ctx context.Context, db *sql.DB, dialect Dialect, identity string) (deleted int64, err error) {
	in, err := s.in(dialect)
	if err != nil {
		return 0, fmt.Errorf("new identity: %w", err)
	}
	return newIdentity(ctx, db, dialect, identity, in)
}

func (s Schema) migrate(ctx context.Context, db *sql.DB, dialect Dialect, part Part) error {
	in, err := s.in(dialect)
	if err != nil {
		return fmt.Errorf("migrate %s: %w", part, err)
	}
	return s.tables(ctx, db, dialect, files, part, in)
}

func (s Schema) tables(ctx context.Context, db *sql.DB, dialect Dialect, files fs.FS, part Part, in schema.Name) error {
	if !in.IsSet() {
		return Tables(ctx, db, dialect, files, string(part))
	}
	all, err := migrationsIn(files, dialect, part)
	if err != nil {
		return fmt.Errorf("migrate %s: %w", part, err)
	}
	return repeatedly(ctx, string(part), in, func() error {
		if err := exists(ctx, db, dialect, in); err != nil {
			return err
		}
		return attemptIn(ctx, db, dialect, part, all, in)
	})
}

// exists returns a permanent error if there is no such schema, and another one if the look failed.
func exists(ctx context.Context, db *sql.DB, dialect Dialect, in schema.Name) error {
	query := map[Dialect]string{
		PostgreSQL: `SELECT count(*) FROM pg_namespace WHERE nspname = $1::text`,
		SQLServer:  `SELECT count(*) FROM sys.schemas WHERE name = @p1`,
	}[dialect]
	var n int
	if err := db.QueryRowContext(ctx, query, in.String()).Scan(&n); err != nil {
		return fmt.Errorf("look for schema %s: %w", in.Quoted(), err)
	}
	if n == 0 {
		return backoff.Permanent(fmt.Errorf("there is no schema %s: an administrator must CREATE SCHEMA %[1]s, and give this login rights on it (bridgectl grants migrate)", in.Quoted()))
	}
	return nil
}

// attemptIn runs each version as one batch: goose splits a text at semicolons and comments, which
// the schema's name may contain.
func attemptIn(ctx context.Context, db *sql.DB, dialect Dialect, part Part, all []migration, in schema.Name) error {
	versions := in.In(part.versions())
	store, err := database.NewStore(gooseDialect[dialect], versions)
	if err != nil {
		return err
	}
	if dialect == PostgreSQL {
		store = seen{store, part.versions(), in}
	}
	var steps []*goose.Migration
	for _, m := range all {
		steps = append(steps, goose.NewGoMigration(m.version, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, in.In(m.up()))
			return err
		}}, nil))
	}
	provider, err := goose.NewProvider(goose.DialectCustom, db, nil, goose.WithStore(store), goose.WithGoMigrations(steps...), goose.WithDisableGlobalRegistry(true))
	if err == nil {
		_, err = provider.Up(ctx)
	}
	return err
}

// seen is a store that looks for its table in the catalogue: the server would log a failed query.
type seen struct {
	database.Store
	versions string
	in       schema.Name
}

// TableExists implements a method that goose calls.
func (s seen) TableExists(ctx context.Context, db database.DBTxConn) (bool, error) {
	return isThere(ctx, db, PostgreSQL, s.versions, s.in)
}
