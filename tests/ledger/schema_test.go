package ledger_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// ownSchema is a name that works only if it is quoted.
const ownSchema = `Mess"age's %[1]s $1 ? --; bridge_ledger ä`

// unfitForProduction are the checks that fail on the tests' servers, which trade durability for
// speed.
var unfitForProduction = []string{"fsync", "full_page_writes", "durability"}

var bridgeName = regexp.MustCompile(`\bbridge_\w+`)

// inOwnSchema qualifies the tables' names in a test's own statement with the schema.
func inOwnSchema(statement string) string {
	return bridgeName.ReplaceAllString(statement, `"`+strings.ReplaceAll(strings.ReplaceAll(ownSchema, `"`, `""`), "$", "$$")+`".$0`)
}

// No schema on search_path has the bridge's tables, so a statement that does not name the schema
// fails. The tests of a driver execute every statement.
func TestPostgresInASchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	runPostgres(t, ofDriver(withOwnSchema(postgresHarness("pgx", servertest.PostgresDB))))
}

func withOwnSchema(h ledgertest.Harness) ledgertest.Harness {
	create := h.Create
	h.Create = func(t testing.TB) func() (*sql.DB, error) {
		t.Helper()
		connect := create(t)
		db, err := connect()
		must(t, err)
		defer db.Close()
		makeOwnSchema(t, db)
		return connect
	}
	h.In = inOwnSchema
	h.Migrate = func(ctx context.Context, db *sql.DB) error {
		return migrate.Schema(ownSchema).Ledger(ctx, db, migrate.PostgreSQL)
	}
	h.MigrateInbox = func(ctx context.Context, db *sql.DB) error {
		return migrate.Schema(ownSchema).Inbox(ctx, db, migrate.PostgreSQL)
	}
	h.Open = func(ctx context.Context, db *sql.DB) (driver.Ledger, error) {
		return postgres.Schema(ownSchema).Open(ctx, db)
	}
	h.Watch = func(ctx context.Context, db *sql.DB) (driver.Ledger, inspect.Watcher, error) {
		ledger, err := postgres.Schema(ownSchema).Open(ctx, db)
		if err != nil {
			return nil, nil, err
		}
		return ledger, postgres.Inspect(ledger), nil
	}
	h.OpenInbox = func(ctx context.Context, db *sql.DB) (driver.Inbox, error) {
		return postgres.Schema(ownSchema).OpenInbox(ctx, db)
	}
	h.Older = inOwnSchema(h.Older)
	return h
}

func makeOwnSchema(t testing.TB, db *sql.DB) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `CREATE SCHEMA "`+strings.ReplaceAll(ownSchema, `"`, `""`)+`"`)
	must(t, err)
}

// Logins with the rights of one role each work in the schema, beside the tables of another bridge
// that are on their search_path.
func TestPostgresRolesInASchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	address, admin := migrated(t)
	makeOwnSchema(t, admin)
	as := func(role migrate.Role, more ...string) *sql.DB {
		rights, err := migrate.Rights(migrate.PostgreSQL, role, "", ownSchema, ownSchema)
		must(t, err)
		_, at := servertest.PostgresRole(t, address, append(rights, more...)...)
		return connect(t, at)
	}
	own, migrator := migrate.Schema(ownSchema), as(migrate.Migrator)
	stranger, strangersURL := servertest.PostgresRole(t, address)
	fix := `GRANT USAGE, CREATE ON SCHEMA ` + inOwnSchema("bridge_x")
	fix = strings.TrimSuffix(fix, ".bridge_x")
	for _, right := range []string{"", "USAGE"} { // granted before each attempt
		if right != "" {
			execute(t, admin, strings.Replace(fix, "USAGE, CREATE", right, 1)+" TO "+stranger)
		}
		if err := own.Ledger(t.Context(), connect(t, strangersURL), migrate.PostgreSQL); err == nil || !strings.Contains(err.Error(), fix+" TO this login") {
			t.Errorf("migrate with %q: %v, must name %s", right, err, fix)
		}
	}
	execute(t, admin, fix+" TO "+stranger)
	for range 2 {
		must(t, own.Ledger(t.Context(), migrator, migrate.PostgreSQL))
		must(t, own.Inbox(t.Context(), migrator, migrate.PostgreSQL))
	}
	for _, part := range []migrate.Part{migrate.LedgerPart, migrate.InboxPart} {
		there, wanted, err := own.Version(t.Context(), migrator, migrate.PostgreSQL, part)
		if err != nil || there != wanted || there == 0 {
			t.Errorf("version %d of %d: %v", there, wanted, err)
		}
	}
	open := func(db *sql.DB) *postgres.Ledger {
		t.Helper()
		ledger, err := postgres.Schema(ownSchema).Open(t.Context(), db)
		must(t, err)
		return ledger
	}
	verifier, other := open(as(migrate.Verifier, "pg_read_all_stats")), openLedger(t, admin)
	if verifier.Identity() == other.Identity() {
		t.Error("two schemas have one identity")
	}
	must(t, prove(t, verifier))
	ledgertest.Well(t, postgres.Inspect(verifier), unfitForProduction...)
	operator := open(as(migrate.Operator))
	ledgertest.ReadsCarried(t, operator, postgres.Inspect(operator), nil)
	use(t, verifier)
	id := newID()
	must(t, recorded(t, open(as(migrate.Canceller)), id).Commit())
	expectOutcome(t, verifier, id, driver.Committed)
	expectOutcome(t, other, id, driver.RolledBack)

	_, err := own.NewIdentity(t.Context(), migrator, migrate.PostgreSQL, newID().String())
	must(t, err)
	if err := verifier.Check(t.Context()); !errors.Is(err, bridge.ErrOtherLedger) {
		t.Errorf("after a new identity: %v", err)
	}
	must(t, other.Check(t.Context()))
	_, at := servertest.PostgresRole(t, address, "SELECT ON "+inOwnSchema("bridge_identity"), "SELECT ON "+inOwnSchema("bridge_ledger_version"),
		`USAGE ON SCHEMA `+strings.TrimSuffix(inOwnSchema("bridge_x"), ".bridge_x"), "pg_read_all_stats")
	fixRights(t, admin, postgres.Inspect(open(connect(t, at))), unfitForProduction...)
}

func TestPostgresOwnTableBesideASchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	db := connect(t, servertest.PostgresDB(t))
	makeOwnSchema(t, db)
	must(t, migrate.Schema(ownSchema).Ledger(t.Context(), db, migrate.PostgreSQL))
	execute(t, db, `CREATE TABLE bridge_ledger (id uuid PRIMARY KEY)`) // a misleading name, too
	ledger, err := postgres.Schema(ownSchema).OpenOwnTable(t.Context(), db, bridge.OwnTable{Table: "bridge_ledger", Column: "id", Canary: "INSERT INTO bridge_ledger (id) VALUES ($id)"})
	must(t, err)
	must(t, prove(t, ledger))
	ledgertest.Well(t, postgres.InspectOwnTable(ledger), unfitForProduction...)
	id := newID()
	tx := begin(t, db)
	_, err = tx.ExecContext(t.Context(), "INSERT INTO public.bridge_ledger (id) VALUES ($1)", id)
	must(t, err)
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(id)))
	must(t, tx.Commit())
	expectOutcome(t, ledger, id, driver.Committed)
	expectOutcome(t, ledger, newID(), driver.RolledBack)
}

// Tables that were created without a schema's name have functions that look for bridge_ledger
// elsewhere.
func TestPostgresFunctionsMustNameTheSchema(t *testing.T) {
	t.Parallel()
	address, db := migrated(t)
	execute(t, db, "ALTER SCHEMA public RENAME TO messaging")
	messaging := postgres.Schema("messaging")
	if _, err := messaging.Open(t.Context(), db); !errors.Is(err, bridge.ErrNoSchema) || !strings.Contains(err.Error(), "CREATE FUNCTION") {
		t.Fatalf("open: %v", err)
	}
	var script strings.Builder
	must(t, migrate.Schema("messaging").Print(&script, migrate.PostgreSQL, migrate.LedgerPart, 0))
	for _, function := range regexp.MustCompile(`(?s)CREATE OR REPLACE FUNCTION .*?';`).FindAllString(script.String(), -1) {
		execute(t, db, function)
	}
	ledger, err := messaging.Open(t.Context(), connect(t, withParameter(t, address, "search_path", "")))
	must(t, err)
	use(t, ledger)
}

func TestPostgresRefusesASchemaByItsName(t *testing.T) {
	t.Parallel()
	db := connect(t, servertest.PostgresDB(t))
	long := strings.Repeat("ä", 32) // 64 bytes
	for name, says := range map[string]string{long: "64 bytes", "a\nb": "control character", `a\b`: "backslash"} {
		_, ledger := postgres.Schema(name).Open(t.Context(), db)
		_, inbox := postgres.Schema(name).OpenInbox(t.Context(), db)
		for _, err := range []error{ledger, inbox, migrate.Schema(name).Ledger(t.Context(), db, migrate.PostgreSQL)} {
			if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "schema ") {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
	if err := migrate.Schema("messaging").Ledger(t.Context(), db, migrate.PostgreSQL); err == nil || !strings.Contains(err.Error(), `CREATE SCHEMA "messaging"`) {
		t.Errorf("migrate into a schema that is not there: %v", err)
	}
}

// As without a schema, a failed connection is tried again. A missing schema is not.
func TestPostgresMigrationIntoASchemaIsTriedAgain(t *testing.T) {
	t.Parallel()
	address := servertest.PostgresDB(t)
	config, err := pgx.ParseConfig(address)
	must(t, err)
	broken := &brokenOnce{Connector: stdlib.GetConnector(*config)}
	db := sql.OpenDB(broken)
	t.Cleanup(func() { must(t, db.Close()) })
	db.SetMaxIdleConns(-1) // each statement connects
	if err := migrate.Schema(ownSchema).Ledger(t.Context(), db, migrate.PostgreSQL); err == nil || !strings.Contains(err.Error(), "CREATE SCHEMA") {
		t.Errorf("migrate into a schema that is not there: %v", err)
	}
	if n := broken.calls.Load(); n != 2 {
		t.Errorf("%d connections for a failed one and a missing schema, must be 2", n)
	}
	makeOwnSchema(t, connect(t, address))
	broken.calls.Store(0)
	must(t, migrate.Schema(ownSchema).Ledger(t.Context(), db, migrate.PostgreSQL))
}

// brokenOnce refuses the first connection.
type brokenOnce struct {
	sqldriver.Connector
	calls atomic.Int32
}

func (b *brokenOnce) Connect(ctx context.Context) (sqldriver.Conn, error) {
	if b.calls.Add(1) == 1 {
		return nil, errors.New("connection refused")
	}
	return b.Connector.Connect(ctx)
}

// The script creates the tables in the schema, however often it runs.
func TestPostgresScriptForASchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	db := connect(t, servertest.PostgresDB(t))
	const dollars = ownSchema + "$bridge$"
	execute(t, db, `CREATE SCHEMA "`+strings.ReplaceAll(dollars, `"`, `""`)+`"`)
	for _, part := range []migrate.Part{migrate.LedgerPart, migrate.InboxPart} {
		var script strings.Builder
		must(t, migrate.Schema(dollars).Print(&script, migrate.PostgreSQL, part, 0))
		for range 2 {
			execute(t, db, script.String())
		}
		there, wanted, err := migrate.Schema(dollars).Version(t.Context(), db, migrate.PostgreSQL, part)
		if err != nil || there != wanted {
			t.Errorf("%s: version %d of %d, %v", part, there, wanted, err)
		}
	}
	ledger, err := postgres.Schema(dollars).Open(t.Context(), db)
	must(t, err)
	use(t, ledger)
}
