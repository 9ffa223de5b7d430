package sqlserver_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

// The switches that a server may come with. A real one has those of a database.
var switches = []struct {
	name     string
	options  tds.Options
	snapshot bool // READ_COMMITTED_SNAPSHOT
}{
	{"locking", tds.Options{}, false},
	{"snapshot", tds.Options{}, true},
	{"snapshot, isolation kept", tds.Options{KeepIsolation: true}, true},
	{"hints ignored", tds.Options{IgnoreHints: true}, true},
}

func TestSuites(t *testing.T) {
	for _, s := range switches {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			if s.options != (tds.Options{}) && servertest.RealSQLServer() {
				t.Skip("only the stand-in has these switches")
			}
			h := harness(servertest.SQLServer(t, &s.options), s.snapshot)
			if s.options.IgnoreHints {
				h = fallenBack(h)
			}
			t.Run("ledger", func(t *testing.T) { ledgertest.Run(t, h) })
			t.Run("inbox", func(t *testing.T) { ledgertest.RunInbox(t, h) })
		})
	}
}

// fallenBack is h with ledgers that have been proved before the suite uses them, as
// a verifier proves them before it judges.
func fallenBack(h ledgertest.Harness) ledgertest.Harness {
	open := h.Open
	h.Open = func(ctx context.Context, db *sql.DB) (bridge.Ledger, error) {
		ledger, err := open(ctx, db)
		if err != nil {
			return nil, err
		}
		ledger.(*sqlserver.Ledger).FallBack(bridge.ErrProof)
		return ledger, nil
	}
	return h
}

func harness(server string, snapshot bool) ledgertest.Harness {
	return ledgertest.Harness{
		Create: func(t testing.TB) func() (*sql.DB, error) {
			address := servertest.SQLServerDB(t, server, snapshot)
			return func() (*sql.DB, error) { return sql.Open("sqlserver", address) }
		},
		Migrate:      func(ctx context.Context, db *sql.DB) error { return migrate.Ledger(ctx, db, migrate.SQLServer) },
		Open:         func(ctx context.Context, db *sql.DB) (bridge.Ledger, error) { return sqlserver.Open(ctx, db) },
		MigrateInbox: func(ctx context.Context, db *sql.DB) error { return migrate.Inbox(ctx, db, migrate.SQLServer) },
		OpenInbox: func(ctx context.Context, db *sql.DB) (bridge.Inbox, error) {
			return sqlserver.OpenInbox(ctx, db)
		},
		Savepoint:  "SAVE TRANSACTION s",
		RollbackTo: "ROLLBACK TRANSACTION s",
		Waiting:    "SELECT count(*) FROM sys.dm_exec_requests WHERE database_id = DB_ID() AND wait_type LIKE 'LCK%'",
		SessionID:  "SELECT @@SPID",
		Kill: func(ctx context.Context, admin *sql.DB, tx *sql.Tx) error {
			var spid string
			if err := tx.QueryRowContext(ctx, "SELECT @@SPID").Scan(&spid); err != nil {
				return err
			}
			_, err := admin.ExecContext(ctx, "KILL "+spid) // takes no parameter
			return err
		},
	}
}
