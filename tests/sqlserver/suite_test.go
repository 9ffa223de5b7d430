package sqlserver_test

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	mssql "github.com/microsoft/go-mssqldb"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

// switches are the settings that a server may have. A real server has only the database's
// settings. The stand-in's plans are the worst that the hints allow.
var switches = []struct {
	name     string
	options  tds.Options
	snapshot bool // READ_COMMITTED_SNAPSHOT
	further  bool // see ledgertest.Harness
}{
	{"locking", tds.Options{Scan: true}, false, false},
	{"snapshot", tds.Options{Scan: true}, true, true},
	{"optimized locking", tds.Options{Scan: true, OptimizedLocking: true}, true, true},
	{"Babelfish", tds.Options{Babelfish: true}, true, false}, // settles by the fallback
}

func TestSuites(t *testing.T) {
	for _, s := range switches {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			if s.options.Babelfish && servertest.RealSQLServer() {
				t.Skip("only the stand-in is one")
			}
			server := servertest.SQLServer(t, &s.options)
			h := harness(server, s.snapshot, "")
			h.Further = s.further
			if s.options.Babelfish {
				h = fallenBack(h)
			}
			if !s.options.Babelfish { // on Babelfish no own table can be used for judging
				t.Run("own table", func(t *testing.T) { ledgertest.Run(t, ownTable(h)) })
				t.Run("inbox, other settings", func(t *testing.T) { ledgertest.RunInbox(t, harness(server, s.snapshot, otherSettings)) })
			}
			t.Run("ledger", func(t *testing.T) { ledgertest.Run(t, h) })
			t.Run("inbox", func(t *testing.T) { ledgertest.RunInbox(t, h) })
		})
	}
}

// fallenBack returns h with ledgers that use the fallback for the waiting lookup, as after a
// failed proof.
func fallenBack(h ledgertest.Harness) ledgertest.Harness {
	h.Overlap = true
	open := h.Open
	h.Open = func(ctx context.Context, db *sql.DB) (driver.Ledger, error) {
		ledger, err := open(ctx, db)
		if err != nil {
			return nil, err
		}
		ledger.FallBack(bridge.ErrProof)
		return ledger, nil
	}
	h.Watch = func(ctx context.Context, db *sql.DB) (driver.Ledger, inspect.Watcher, error) {
		ledger, err := sqlserver.Open(ctx, db)
		if err != nil {
			return nil, nil, err
		}
		ledger.FallBack(bridge.ErrProof)
		return ledger, sqlserver.Inspect(ledger), nil
	}
	return h
}

var ownTableName = bridge.OwnTable{Table: `Shop.or[d]er's; --`, Column: "message [ID]"}

// ownTable returns h on a table whose names work only if they are quoted.
func ownTable(h ledgertest.Harness) ledgertest.Harness {
	own := ownTableName
	const table, column = `[Shop].[or[d]]er's; --]`, "[message [ID]]]"
	create := h.Create
	h.Create = func(t testing.TB) func() (*sql.DB, error) {
		t.Helper()
		connect := create(t)
		db, err := connect()
		must(t, err)
		defer db.Close()
		for _, statement := range []string{"CREATE SCHEMA Shop",
			"CREATE TABLE " + table + " (n int, " + column + " uniqueidentifier NOT NULL UNIQUE)"} {
			_, err := db.ExecContext(t.Context(), statement)
			must(t, err)
		}
		return connect
	}
	h.Open = func(ctx context.Context, db *sql.DB) (driver.Ledger, error) {
		return sqlserver.OpenOwnTable(ctx, db, own)
	}
	h.Watch = func(ctx context.Context, db *sql.DB) (driver.Ledger, inspect.Watcher, error) {
		ledger, err := sqlserver.OpenOwnTable(ctx, db, own)
		if err != nil {
			return nil, nil, err
		}
		return ledger, sqlserver.InspectOwnTable(ledger), nil
	}
	h.Insert = func(ctx context.Context, tx bridge.Tx, ids []uuid.UUID) error {
		for ids := range slices.Chunk(ids, 1000) { // the most that VALUES accepts
			values := make([]string, len(ids))
			for i, id := range ids {
				values[i] = "('" + id.String() + "')"
			}
			_, err := tx.Exec(ctx, "INSERT INTO "+table+" ("+column+") VALUES "+strings.Join(values, ", "))
			if err != nil {
				return err
			}
		}
		return nil
	}
	return h
}

// otherSettings are settings that an application's session may have. ROWCOUNT would also end the
// queries of the migrator.
const otherSettings = "SET NOCOUNT ON; SET XACT_ABORT ON; SET TEXTSIZE 1"

// program is the application name of the suites' connections.
const program = "ledgertest"

// harness returns the harness of a server, on sessions that begin with these settings.
func harness(server string, snapshot bool, settings string) ledgertest.Harness {
	return ledgertest.Harness{
		Create: func(t testing.TB) func() (*sql.DB, error) {
			address := servertest.SQLServerDB(t, server, snapshot)
			return func() (*sql.DB, error) {
				connector, err := mssql.NewConnector(address + "&app+name=" + program)
				if err != nil {
					return nil, err
				}
				connector.SessionInitSQL = settings
				return sql.OpenDB(connector), nil
			}
		},
		Migrate: func(ctx context.Context, db *sql.DB) error { return migrate.Ledger(ctx, db, migrate.SQLServer) },
		Open:    func(ctx context.Context, db *sql.DB) (driver.Ledger, error) { return sqlserver.Open(ctx, db) },
		Watch: func(ctx context.Context, db *sql.DB) (driver.Ledger, inspect.Watcher, error) {
			ledger, err := sqlserver.Open(ctx, db)
			if err != nil {
				return nil, nil, err
			}
			return ledger, sqlserver.Inspect(ledger), nil
		},
		MigrateInbox: func(ctx context.Context, db *sql.DB) error { return migrate.Inbox(ctx, db, migrate.SQLServer) },
		OpenInbox: func(ctx context.Context, db *sql.DB) (driver.Inbox, error) {
			return sqlserver.OpenInbox(ctx, db)
		},
		Literal:      func(id uuid.UUID) string { return "'" + id.String() + "'" },
		Older:        "UPDATE bridge_ledger SET recorded_at = DATEADD(hour, -2, recorded_at), stage_at = DATEADD(hour, -2, stage_at)",
		Copy:         "UPDATE bridge_identity SET [identity] = NEWID()",
		Uncarry:      []string{"DROP INDEX bridge_ledger_stage_at ON bridge_ledger", "ALTER TABLE bridge_ledger DROP COLUMN message, stage_at"},
		RefuseDelete: []string{"CREATE TRIGGER refuse ON bridge_ledger INSTEAD OF DELETE AS THROW 50000, 'refused', 1"},
		KillSession: func(ctx context.Context, admin *sql.DB, session string) error {
			_, err := admin.ExecContext(ctx, "KILL "+session)
			return err
		},
		OnePlan:    !servertest.RealSQLServer(),
		Savepoint:  "SAVE TRANSACTION s",
		RollbackTo: "ROLLBACK TRANSACTION s",
		Waiting:    waiting,
		SessionID:  "SELECT @@SPID",
		Program:    program,
		Clock:      "SELECT DATEDIFF_BIG(millisecond, '19700101', SYSUTCDATETIME())",
		Kill: func(ctx context.Context, admin *sql.DB, tx *sql.Tx) error {
			var spid string
			if err := tx.QueryRowContext(ctx, "SELECT @@SPID").Scan(&spid); err != nil {
				return err
			}
			_, err := admin.ExecContext(ctx, "KILL "+spid) // KILL takes no parameter
			return err
		},
	}
}
