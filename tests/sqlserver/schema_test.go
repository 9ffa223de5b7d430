package sqlserver_test

import (
	"context"
	"database/sql"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

// ownSchema is a name that works only if it is quoted.
const ownSchema = `Mess]age's "%[1]s" $1 ? --; bridge_ledger ä`

var bridgeName = regexp.MustCompile(`\bbridge_\w+( ON bridge_\w+)?`)

// inOwnSchema qualifies the tables' names in a test's own statement with the schema. An index
// before ON stays unqualified.
func inOwnSchema(statement string) string {
	return bridgeName.ReplaceAllStringFunc(statement, func(name string) string {
		if index, table, ok := strings.Cut(name, " ON "); ok {
			return index + " ON " + ownSchemaQuoted + "." + table
		}
		return ownSchemaQuoted + "." + name
	})
}

var ownSchemaQuoted = "[" + strings.ReplaceAll(ownSchema, "]", "]]") + "]"

// Without the schema's name no table of the bridge is found. The tests of a driver execute every
// statement.
func TestSuitesInASchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	h := withOwnSchema(harness(servertest.SQLServer(t, &tds.Options{Scan: true, Schema: ownSchema}), true, ""))
	h.Driver = true
	t.Run("ledger", func(t *testing.T) { ledgertest.Run(t, h) })
	t.Run("inbox", func(t *testing.T) { ledgertest.RunInbox(t, h) })
	own := ownTable(h)
	own.Open = func(ctx context.Context, db *sql.DB) (driver.Ledger, error) {
		return sqlserver.Schema(ownSchema).OpenOwnTable(ctx, db, ownTableName)
	}
	own.Watch = nil
	t.Run("own table", func(t *testing.T) { ledgertest.Run(t, own) })
}

func withOwnSchema(h ledgertest.Harness) ledgertest.Harness {
	create := h.Create
	h.Create = func(t testing.TB) func() (*sql.DB, error) {
		t.Helper()
		connect := create(t)
		db, err := connect()
		must(t, err)
		defer db.Close()
		_, err = db.ExecContext(t.Context(), "CREATE SCHEMA "+ownSchemaQuoted)
		must(t, err)
		return connect
	}
	h.In = inOwnSchema
	h.Migrate = func(ctx context.Context, db *sql.DB) error {
		return migrate.Schema(ownSchema).Ledger(ctx, db, migrate.SQLServer)
	}
	h.MigrateInbox = func(ctx context.Context, db *sql.DB) error {
		return migrate.Schema(ownSchema).Inbox(ctx, db, migrate.SQLServer)
	}
	h.Open = func(ctx context.Context, db *sql.DB) (driver.Ledger, error) {
		return sqlserver.Schema(ownSchema).Open(ctx, db)
	}
	h.Watch = func(ctx context.Context, db *sql.DB) (driver.Ledger, inspect.Watcher, error) {
		ledger, err := sqlserver.Schema(ownSchema).Open(ctx, db)
		if err != nil {
			return nil, nil, err
		}
		return ledger, sqlserver.Inspect(ledger), nil
	}
	h.OpenInbox = func(ctx context.Context, db *sql.DB) (driver.Inbox, error) {
		return sqlserver.Schema(ownSchema).OpenInbox(ctx, db)
	}
	h.Older = inOwnSchema(h.Older)
	return h
}

func TestASchemaOfItsOwnIsMadeByHandAndDiagnosed(t *testing.T) {
	t.Parallel()
	server := servertest.SQLServerStandIn(t, &tds.Options{Schema: ownSchema})
	db := connect(t, servertest.SQLServerDB(t, server.URL("master"), true))
	own := migrate.Schema(ownSchema)
	if err := own.Ledger(t.Context(), db, migrate.SQLServer); err == nil || !strings.Contains(err.Error(), "CREATE SCHEMA "+ownSchemaQuoted) {
		t.Errorf("migrate into a schema that is not there: %v", err)
	}
	if _, err := sqlserver.Schema(ownSchema).Open(t.Context(), db); !errors.Is(err, bridge.ErrNoSchema) || !strings.Contains(err.Error(), "migrate.Schema(") {
		t.Errorf("open without tables: %v", err)
	}
	execute(t, db, "CREATE SCHEMA "+ownSchemaQuoted)
	for _, part := range []migrate.Part{migrate.LedgerPart, migrate.InboxPart} {
		var script strings.Builder
		must(t, own.Print(&script, migrate.SQLServer, part, 0))
		for range 2 {
			for _, batch := range strings.Split(script.String(), "GO\n") {
				execute(t, db, batch)
			}
		}
		there, wanted, err := own.Version(t.Context(), db, migrate.SQLServer, part)
		if err != nil || there != wanted || there == 0 {
			t.Errorf("%s: version %d of %d, %v", part, there, wanted, err)
		}
	}
	ledger, err := sqlserver.Schema(ownSchema).Open(t.Context(), db)
	must(t, err)
	must(t, prove(t, ledger))
	ledgertest.Well(t, sqlserver.Inspect(ledger))
	ledgertest.ReadsCarried(t, ledger, sqlserver.Inspect(ledger), nil)
	_, err = own.NewIdentity(t.Context(), db, migrate.SQLServer, newID().String())
	must(t, err)
	if err := ledger.Check(t.Context()); !errors.Is(err, bridge.ErrOtherLedger) {
		t.Errorf("after a new identity: %v", err)
	}
	server.Deny("DELETE ON bridge_ledger")
	if _, err := ledger.Forget(t.Context(), []uuid.UUID{newID()}); err == nil || !strings.Contains(err.Error(), "ON "+inOwnSchema("bridge_ledger")) {
		t.Errorf("without a right: %v", err)
	}
}

func TestSQLServerRefusesASchemaByItsName(t *testing.T) {
	t.Parallel()
	db := connect(t, servertest.SQLServerDB(t, servertest.SQLServer(t, nil), false))
	for name, says := range map[string]string{strings.Repeat("ä", 129): "129 characters", "a\nb": "control character"} {
		_, ledger := sqlserver.Schema(name).Open(t.Context(), db)
		_, inbox := sqlserver.Schema(name).OpenInbox(t.Context(), db)
		for _, err := range []error{ledger, inbox, migrate.Schema(name).Inbox(t.Context(), db, migrate.SQLServer)} {
			if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "schema ") {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
}
