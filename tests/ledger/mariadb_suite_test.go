package ledger_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func testMariaDBSuite(t *testing.T) {
	h := mariaDBHarness()
	ledgertest.Run(t, h)
	t.Run("inbox", func(t *testing.T) { ledgertest.RunInbox(t, h) })
}

func mariaDBHarness() ledgertest.Harness {
	return ledgertest.Harness{
		Create: func(t testing.TB) func() (*sql.DB, error) {
			dsn := servertest.MariaDBDatabase(t)
			return func() (*sql.DB, error) { return sql.Open("mysql", dsn) }
		},
		Migrate: func(ctx context.Context, db *sql.DB) error { return migrate.Ledger(ctx, db, migrate.MySQL) },
		Open: func(ctx context.Context, db *sql.DB) (driver.Ledger, error) {
			return mysql.Open(ctx, db)
		},
		Watch: func(ctx context.Context, db *sql.DB) (driver.Ledger, inspect.Watcher, error) {
			ledger, err := mysql.Open(ctx, db)
			if err != nil {
				return nil, nil, err
			}
			return ledger, mysql.Inspect(ledger), nil
		},
		MigrateInbox: func(ctx context.Context, db *sql.DB) error { return migrate.Inbox(ctx, db, migrate.MySQL) },
		OpenInbox: func(ctx context.Context, db *sql.DB) (driver.Inbox, error) {
			return mysql.OpenInbox(ctx, db)
		},
		Literal: func(id uuid.UUID) string { return "UNHEX(REPLACE('" + id.String() + "', '-', ''))" },
		Older:   "UPDATE bridge_ledger SET recorded_at = recorded_at - INTERVAL 2 HOUR, stage_at = stage_at - INTERVAL 2 HOUR",
		Copy:    "UPDATE bridge_identity SET identity = UNHEX(REPLACE(UUID(), '-', ''))",
		Uncarry: []string{"ALTER TABLE bridge_ledger DROP COLUMN message, DROP COLUMN stage_at, DROP COLUMN claimed_by"},
		RefuseDelete: []string{"CREATE TRIGGER refuse BEFORE DELETE ON bridge_ledger FOR EACH ROW " + // except the flush's row, which is new
			"IF OLD.recorded_at < UTC_TIMESTAMP() - INTERVAL 1 HOUR THEN SIGNAL SQLSTATE '45000'; END IF"},
		KillSession: func(ctx context.Context, admin *sql.DB, session string) error {
			_, err := admin.ExecContext(ctx, "KILL "+session)
			return err
		},
		Conflict:   changedSince,
		Savepoint:  "SAVEPOINT s",
		RollbackTo: "ROLLBACK TO SAVEPOINT s",
		Waiting:    "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_row_lock_current_waits'",
		Gather:     "ANALYZE TABLE %s",
		Scanned:    scannedByMariaDB,
		SessionID:  "SELECT connection_id()",
		Clock:      "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED)",
		Kill: func(ctx context.Context, admin *sql.DB, tx *sql.Tx) error {
			var id int64
			if err := tx.QueryRowContext(ctx, "SELECT connection_id()").Scan(&id); err != nil {
				return err
			}
			_, err := admin.ExecContext(ctx, fmt.Sprint("KILL ", id)) // MySQL accepts no parameter there
			return err
		},
	}
}

// scannedByMariaDB returns the number of rows read by scans of tables and indexes.
func scannedByMariaDB(ctx context.Context, db *sql.DB) (n int, err error) {
	rows, err := db.QueryContext(ctx, "SHOW SESSION STATUS WHERE Variable_name IN ('Handler_read_rnd_next', 'Handler_read_next', 'Handler_read_prev')")
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var value int
		if err := rows.Scan(&name, &value); err != nil {
			return 0, err
		}
		n += value
	}
	return n, rows.Err()
}
