package database

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite" // driver

	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
)

var sqliteKind = kind{
	dialect: migrate.SQLite,
	open:    openSQLite,
	in: func(migrate.Schema) openers {
		return openers{opens(sqlite.Open, sqlite.Inspect), opensOwn(sqlite.OpenOwnTable, sqlite.InspectOwnTable), opensInbox(sqlite.OpenInbox)}
	},

	inboxDiagnose: sqlite.DiagnoseInbox,
}

// sqliteSettings are the settings that every connection needs: patience with other writers, and the
// write lock from the start of a transaction, since a transaction that has read cannot always get it
// later. The URL's own settings come after them and prevail.
const sqliteSettings = "_pragma=busy_timeout(60000)&_txlock=immediate"

func openSQLite(ctx context.Context, read func() string, create bool) (*sqlx.DB, error) {
	address := read()
	path, settings, _ := strings.Cut(strings.TrimPrefix(address, "sqlite:"), "?")
	path = strings.TrimPrefix(path, "//")
	if path == "" {
		return nil, fmt.Errorf("%w: it must be sqlite:/path/to/file", ErrURL)
	}
	dsn := "file:" + escape(path) + "?" + sqliteSettings
	if create {
		dsn += "&mode=rwc&_pragma=journal_mode(wal)"
	} else {
		// SQLite would create the file, or with mode=rw return an error that says little.
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("%w: sqlite file: %w", ErrUnreachable, reason(err))
		}
		dsn += "&mode=rw"
	}
	if settings != "" {
		dsn += "&" + settings
	}
	db, err := sqlx.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrURL, err)
	}
	return ping(ctx, db, func(err error) error { return fmt.Errorf("%w: %w", ErrUnreachable, err) })
}

// escape keeps SQLite from reading a path's own characters as URI syntax.
func escape(path string) string {
	return strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
}

// reason returns a file's error without the path.
func reason(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
