package sqlite_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	_ "modernc.org/sqlite"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
)

var harness = ledgertest.Harness{
	Create: func(t testing.TB) func() (*sql.DB, error) {
		file := filepath.Join(t.TempDir(), "ledger.db")
		return func() (*sql.DB, error) {
			db, err := open(file, "")
			if err != nil {
				return nil, err
			}
			return sql.OpenDB(recorder{db.Driver(), dsn(file, "")}), db.Close()
		}
	},
	Migrate: func(ctx context.Context, db *sql.DB) error { return migrate.Ledger(ctx, db, migrate.SQLite) },
	Open: func(ctx context.Context, db *sql.DB) (driver.Ledger, error) {
		return sqlite.Open(ctx, db)
	},
	MigrateInbox: func(ctx context.Context, db *sql.DB) error { return migrate.Inbox(ctx, db, migrate.SQLite) },
	OpenInbox: func(ctx context.Context, db *sql.DB) (driver.Inbox, error) {
		return sqlite.OpenInbox(ctx, db)
	},
	Begun: []string{`CREATE TABLE bridge_ledger_version (id INTEGER PRIMARY KEY AUTOINCREMENT, version_id INTEGER NOT NULL,
		is_applied INTEGER NOT NULL, tstamp TIMESTAMP DEFAULT (datetime('now')))`, `INSERT INTO bridge_ledger_version (version_id, is_applied) VALUES (0, 1)`},
	Literal:      func(id uuid.UUID) string { return "'" + id.String() + "'" },
	Older:        "UPDATE bridge_ledger SET recorded_at = recorded_at - 2 * 3600, stage_at = stage_at - 2 * 3600 * 1000",
	Copy:         "UPDATE bridge_identity SET identity = '0192a0c0-0000-7000-8000-000000000001'",
	Uncarry:      []string{"DROP INDEX bridge_ledger_stage_at", "ALTER TABLE bridge_ledger DROP COLUMN message", "ALTER TABLE bridge_ledger DROP COLUMN stage_at"},
	RefuseDelete: []string{"CREATE TRIGGER refuse BEFORE DELETE ON bridge_ledger BEGIN SELECT RAISE(ABORT, 'refused'); END"},
	Gather:       "ANALYZE %s",
	Scanned:      scanned,
	Overlap:      true,
	Savepoint:    "SAVEPOINT s",
	RollbackTo:   "ROLLBACK TO s",
	OneWriter:    true,
}

func open(file, options string) (*sql.DB, error) { return sql.Open("sqlite", dsn(file, options)) }

func dsn(file, options string) string {
	return "file:" + file + "?_pragma=journal_mode(wal)&_pragma=busy_timeout(120000)&" + options
}

func TestLedger(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, harness)
}

// Each name needs quotes.
func TestOwnTable(t *testing.T) {
	t.Parallel()
	h := harness
	h.Create = func(t testing.TB) func() (*sql.DB, error) {
		connect := harness.Create(t)
		db, err := connect()
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		_, err = db.ExecContext(t.Context(), `CREATE TABLE "or""der's; --" (n INTEGER PRIMARY KEY, "message ""ID""" VARCHAR(36) UNIQUE)`)
		if err != nil {
			t.Fatal(err)
		}
		return connect
	}
	h.Table = `"or""der's; --"`
	own := bridge.OwnTable{Table: `main.or"der's; --`, Column: `message "ID"`}
	h.Open = func(ctx context.Context, db *sql.DB) (driver.Ledger, error) {
		return sqlite.OpenOwnTable(ctx, db, own)
	}
	h.Insert = func(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error {
		for _, id := range ids {
			if _, err := tx.Exec(ctx, `INSERT INTO "or""der's; --" ("message ""ID""") VALUES (?)`, id.String()); err != nil {
				return err
			}
		}
		return nil
	}
	ledgertest.Run(t, h)
}

func TestInbox(t *testing.T) {
	t.Parallel()
	ledgertest.RunInbox(t, harness)
}
