package sqlite_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
)

var harness = ledgertest.Harness{
	Create: func(t testing.TB) func() (*sql.DB, error) {
		file := filepath.Join(t.TempDir(), "ledger.db")
		return func() (*sql.DB, error) { return open(file, "") }
	},
	Migrate: func(ctx context.Context, db *sql.DB) error { return migrate.Ledger(ctx, db, migrate.SQLite) },
	Open: func(ctx context.Context, db *sql.DB) (bridge.Ledger, error) {
		return sqlite.Open(ctx, db)
	},
	MigrateInbox: func(ctx context.Context, db *sql.DB) error { return migrate.Inbox(ctx, db, migrate.SQLite) },
	OpenInbox: func(ctx context.Context, db *sql.DB) (bridge.Inbox, error) {
		return sqlite.OpenInbox(ctx, db)
	},
	Savepoint:  "SAVEPOINT s",
	RollbackTo: "ROLLBACK TO s",
	OneWriter:  true,
}

func open(file, options string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+file+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(10000)&"+options)
}

func TestLedger(t *testing.T) { ledgertest.Run(t, harness) }

func TestInbox(t *testing.T) { ledgertest.RunInbox(t, harness) }
