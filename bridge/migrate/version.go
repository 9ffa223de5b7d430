package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/twoqueue/twoqueue/bridge/internal/mssql"
	"github.com/twoqueue/twoqueue/bridge/internal/schema"
)

// A Part is a set of tables that has a version of its own.
type Part string

// The parts made by this package.
const (
	LedgerPart Part = "ledger"
	InboxPart  Part = "inbox"
)

func (p Part) versions() string { return "bridge_" + string(p) + "_version" }

// Version returns the version of a part in db, 0 for none, and the version that this release makes.
// It changes nothing.
func Version(ctx context.Context, db *sql.DB, dialect Dialect, part Part) (there, wanted int64, err error) {
	return Schema("").Version(ctx, db, dialect, part)
}

func version(ctx context.Context, db *sql.DB, dialect Dialect, part Part, in schema.Name) (there, wanted int64, err error) {
	all, err := migrations(dialect, part)
	if err != nil {
		return 0, 0, err
	}
	wanted = all[len(all)-1].version
	begun, err := isThere(ctx, db, dialect, part.versions(), in)
	if err != nil {
		return 0, wanted, fmt.Errorf("look for the version of the %s: %w", part, err)
	}
	if !begun {
		return 0, wanted, nil
	}
	store, err := database.NewStore(gooseDialect[dialect], in.In(part.versions()))
	if err == nil {
		there, err = store.GetLatestVersion(ctx, db)
	}
	switch {
	case errors.Is(err, database.ErrVersionNotFound), // a crash of the first migrator can leave it so
		mssql.Number(err) == mssql.NoObject: // or the login may not see the table
		return 0, wanted, nil
	case err != nil:
		return 0, wanted, fmt.Errorf("read the version of the %s: %w", part, err)
	}
	return there, wanted, nil
}

// isThere reports whether a table exists, if that can be read without a right on it. On SQL Server
// the result is always true, and reading the table shows it.
func isThere(ctx context.Context, db database.DBTxConn, dialect Dialect, table string, in schema.Name) (there bool, err error) {
	query := map[Dialect]string{
		PostgreSQL: `SELECT to_regclass('` + table + `') IS NOT NULL`,
		MySQL:      `SELECT count(*) > 0 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '` + table + `'`,
		SQLite:     `SELECT count(*) > 0 FROM sqlite_master WHERE type = 'table' AND name = '` + table + `'`,
	}[dialect]
	if query == "" {
		return true, nil
	}
	err = db.QueryRowContext(ctx, in.In(query)).Scan(&there)
	return there, err
}

// migration is one file.
type migration struct {
	version int64
	name    string
	text    string
}

// up returns the statements of the upgrade.
func (m migration) up() string {
	_, text, _ := strings.Cut(m.text, "-- +goose Up\n")
	return strings.TrimSpace(text)
}

// migrations returns the migrations of a part of the bridge.
func migrations(dialect Dialect, part Part) ([]migration, error) {
	return migrationsIn(files, dialect, part)
}

// migrationsIn returns the migrations of a part in files, at least one, in their order.
func migrationsIn(files fs.FS, dialect Dialect, part Part) ([]migration, error) {
	dir := path.Join("sql", string(dialect), string(part))
	entries, err := fs.ReadDir(files, dir)
	if err != nil || len(entries) == 0 {
		return nil, fmt.Errorf("no migrations of the %s for %q", part, dialect)
	}
	var all []migration
	for _, entry := range entries { // sorted by name, which begins with the version
		version, err := goose.NumericComponent(entry.Name())
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", entry.Name(), err)
		}
		text, err := fs.ReadFile(files, path.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", entry.Name(), err)
		}
		all = append(all, migration{version, entry.Name(), string(text)})
	}
	return all, nil
}
