package ledger_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// unusable is an unusable table, as DDL, with the column and the text that the error must
// contain.
type unusable struct{ ddl, column, says string }

func testUnusable(t *testing.T, db *sql.DB, open func(bridge.OwnTable) (driver.Ledger, error), cases map[string]unusable) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.ddl != "" {
				execute(t, db, c.ddl)
				t.Cleanup(func() {
					_, err := db.ExecContext(context.Background(), "DROP TABLE orders")
					must(t, err)
				})
			}
			_, err := open(bridge.OwnTable{Table: "orders", Column: c.column})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("open: %v, must say %q", err, c.says)
			}
		})
	}
}

func TestPostgresUnusableOwnTableIsRefused(t *testing.T) {
	t.Parallel()
	_, db := migrated(t)
	open := func(own bridge.OwnTable) (driver.Ledger, error) { return postgres.OpenOwnTable(t.Context(), db, own) }
	testUnusable(t, db, open, map[string]unusable{
		"no table":         {"", "id", "no table orders"},
		"no column":        {"CREATE TABLE orders (n int)", "id", "no column id"},
		"a system column":  {"CREATE TABLE orders (n int)", "xmin", "no column xmin"},
		"text":             {"CREATE TABLE orders (id text PRIMARY KEY)", "id", "is text, must be uuid"},
		"varchar":          {"CREATE TABLE orders (id varchar(36) PRIMARY KEY)", "id", "character varying(36)"},
		"no index":         {"CREATE TABLE orders (id uuid)", "id", "unique index"},
		"plain index":      {"CREATE TABLE orders (id uuid); CREATE INDEX ON orders (id)", "id", "unique index"},
		"partial index":    {"CREATE TABLE orders (id uuid, n int); CREATE UNIQUE INDEX ON orders (id) WHERE n > 0", "id", "unique index"},
		"index on two":     {"CREATE TABLE orders (id uuid, n int, PRIMARY KEY (id, n))", "id", "unique index"},
		"deferrable":       {"CREATE TABLE orders (id uuid UNIQUE DEFERRABLE)", "id", "unique index"},
		"unlogged":         {"CREATE UNLOGGED TABLE orders (id uuid PRIMARY KEY)", "id", "unlogged"},
		"other case":       {`CREATE TABLE orders ("ID" uuid PRIMARY KEY)`, "id", "no column id"},
		"empty column":     {"", "", "column has no name"},
		"zero byte":        {"", "a\x00b", "zero byte"},
		"an SQL injection": {"CREATE TABLE orders (id uuid PRIMARY KEY)", `id" FROM orders; DROP TABLE orders; --`, "no column"},
	})
	execute(t, db, "CREATE VIEW orders AS SELECT gen_random_uuid() AS id")
	if _, err := open(bridge.OwnTable{Table: "orders", Column: "id"}); err == nil || !strings.Contains(err.Error(), "not a table") {
		t.Errorf("open a view: %v", err)
	}
}

func testMariaDBUnusableOwnTableIsRefused(t *testing.T) {
	_, db := mariaDB(t)
	open := func(own bridge.OwnTable) (driver.Ledger, error) { return mysql.OpenOwnTable(t.Context(), db, own) }
	testUnusable(t, db, open, map[string]unusable{
		"no table":         {"", "id", "no table orders"},
		"no column":        {"CREATE TABLE orders (n INT)", "id", "no column id"},
		"char":             {"CREATE TABLE orders (id CHAR(36) PRIMARY KEY)", "id", "is char(36), must be binary(16)"},
		"varbinary":        {"CREATE TABLE orders (id VARBINARY(16) PRIMARY KEY)", "id", "must be binary(16)"},
		"no index":         {"CREATE TABLE orders (id BINARY(16))", "id", "unique index"},
		"plain index":      {"CREATE TABLE orders (id BINARY(16), KEY (id))", "id", "unique index"},
		"index on two":     {"CREATE TABLE orders (id BINARY(16), n INT, PRIMARY KEY (id, n))", "id", "unique index"},
		"index on a part":  {"CREATE TABLE orders (id BINARY(16), UNIQUE KEY (id(8)))", "id", "unique index"},
		"MyISAM":           {"CREATE TABLE orders (id BINARY(16) PRIMARY KEY) ENGINE = MyISAM", "id", "must be InnoDB"},
		"index not used":   {"CREATE TABLE orders (id BINARY(16), UNIQUE KEY (id) " + unused(t, db) + ")", "id", "unique index"},
		"empty column":     {"", "", "column has no name"},
		"an SQL injection": {"CREATE TABLE orders (id BINARY(16) PRIMARY KEY)", "id` FROM orders; DROP TABLE orders; -- ", "no column"},
	})
	execute(t, db, "CREATE VIEW orders AS SELECT UNHEX(REPEAT('00', 16)) AS id")
	if _, err := open(bridge.OwnTable{Table: "orders", Column: "id"}); err == nil {
		t.Error("a view can be opened")
	}
}

// unused returns the clause of an index that no statement may use.
func unused(t *testing.T, db *sql.DB) string {
	t.Helper()
	var version string
	must(t, db.QueryRowContext(t.Context(), "SELECT VERSION()").Scan(&version))
	if strings.Contains(version, "MariaDB") {
		return "IGNORED"
	}
	return "INVISIBLE"
}

// If there are two indexes, the ledger uses the one that statements may use, whatever the names.
func testMariaDBOwnTableIsReadByAnIndexInUse(t *testing.T) {
	_, db := mariaDB(t)
	execute(t, db, "CREATE TABLE orders (id BINARY(16), n INT, UNIQUE KEY a (id) "+unused(t, db)+", UNIQUE KEY z (id))")
	ledger, err := mysql.OpenOwnTable(t.Context(), db, bridge.OwnTable{Table: "orders", Column: "id"})
	must(t, err)
	// With 1,000 rows a statement without an index would read all rows.
	execute(t, db, "INSERT INTO orders (id, n) WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 1000) SELECT UNHEX(LPAD(n, 32, '0')), n FROM r")
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	defer func() { _ = tx.Rollback() }()
	id := newID()
	_, err = tx.ExecContext(t.Context(), "INSERT INTO orders (id, n) VALUES (UNHEX(?), 1)", strings.ReplaceAll(id.String(), "-", ""))
	must(t, err)
	// A scan would wait at the other transaction's row.
	outcome, _, err := ledger.Settle(t.Context(), newID(), time.Second)
	must(t, err)
	if outcome != driver.RolledBack {
		t.Errorf("a settle of another ID says %q, must say %q: it has read other rows", outcome, driver.RolledBack)
	}
	must(t, tx.Rollback())
	execute(t, db, "ALTER TABLE orders DROP INDEX z")
	if _, _, err := ledger.Settle(t.Context(), id, time.Second); err == nil || !strings.Contains(err.Error(), "the index that the statements need is missing") {
		t.Errorf("settle without the index: %v", err)
	}
}

// The rights in the packages' documentation suffice. The proof does not write to the table: only
// the application may do so.
func TestPostgresOwnTableLeastRights(t *testing.T) {
	t.Parallel()
	address, admin := migrated(t)
	execute(t, admin, "CREATE SCHEMA shop")
	execute(t, admin, "CREATE TABLE shop.orders (n int, id uuid UNIQUE)")
	_, asSender := servertest.PostgresRole(t, address, "USAGE ON SCHEMA shop", "SELECT (id) ON shop.orders", "SELECT ON bridge_identity, bridge_ledger_version")
	execute(t, admin, "GRANT INSERT ON shop.orders TO "+roleOf(t, asSender)) // the application needs it in any case
	_, asVerifier := servertest.PostgresRole(t, address, "USAGE ON SCHEMA shop", "SELECT (id) ON shop.orders", "SELECT, INSERT, DELETE ON bridge_ledger", "SELECT ON bridge_identity, bridge_ledger_version")
	_, asStranger := servertest.PostgresRole(t, address, "USAGE ON SCHEMA shop", "SELECT ON bridge_identity, bridge_ledger_version")
	own := bridge.OwnTable{Table: "shop.orders", Column: "id"}

	senders := connect(t, asSender)
	sender, err := postgres.OpenOwnTable(t.Context(), senders, own)
	must(t, err)
	verifier, err := postgres.OpenOwnTable(t.Context(), connect(t, asVerifier), own)
	must(t, err)
	testOwnTableRoles(t, senders, sender, verifier, func(id uuid.UUID) string {
		return "INSERT INTO shop.orders (id) VALUES ('" + id.String() + "')"
	})
	// Without EXECUTE on functions for PUBLIC, an own table's verifier works without
	// bridge_committed, which only the ledger's lookup calls.
	execute(t, admin, "REVOKE EXECUTE ON FUNCTION bridge_committed(uuid[]), bridge_forget(uuid[]) FROM PUBLIC")
	execute(t, admin, "GRANT EXECUTE ON FUNCTION bridge_forget(uuid[]) TO "+roleOf(t, asVerifier))
	must(t, prove(t, verifier))
	expectRights(t, inspectorOf(t, verifier))
	if _, err := postgres.OpenOwnTable(t.Context(), connect(t, asStranger), own); err == nil || !strings.Contains(err.Error(), "GRANT SELECT (id) ON shop.orders") {
		t.Errorf("open without the right to read: %v", err)
	}
	own.Canary = "INSERT INTO shop.orders (id) VALUES ($id)"
	withCanary, err := postgres.OpenOwnTable(t.Context(), admin, own)
	must(t, err)
	testCanary(t, admin, "shop.orders", withCanary)
	own.Canary = "INSERT INTO shop.orders (id) VALUES (gen_random_uuid())"
	if _, err := postgres.OpenOwnTable(t.Context(), admin, own); err == nil || !strings.Contains(err.Error(), "$id") {
		t.Errorf("open with a canary without an ID: %v", err)
	}
	execute(t, admin, "ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY")
	if err := verifier.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "BYPASSRLS") {
		t.Errorf("check under row-level security: %v", err)
	}
}

func testMariaDBOwnTableLeastRights(t *testing.T) {
	config, admin := mariaDB(t)
	execute(t, admin, "CREATE TABLE orders (n INT, id BINARY(16) UNIQUE) ENGINE = InnoDB")
	senders := mariaDBRole(t, config, admin, "SELECT (id), INSERT ON orders", "SELECT ON bridge_ledger", "SELECT ON bridge_identity", "SELECT ON bridge_ledger_version")
	verifiers := mariaDBRole(t, config, admin, "SELECT (id) ON orders", "SELECT, INSERT, DELETE ON bridge_ledger", "SELECT ON bridge_identity", "SELECT ON bridge_ledger_version")
	strangers := mariaDBRole(t, config, admin, "SELECT ON bridge_ledger", "SELECT ON bridge_identity", "SELECT ON bridge_ledger_version")
	own := bridge.OwnTable{Table: config.DBName + ".orders", Column: "id"}

	sender, err := mysql.OpenOwnTable(t.Context(), senders, own)
	must(t, err)
	verifier, err := mysql.OpenOwnTable(t.Context(), verifiers, own)
	must(t, err)
	testOwnTableRoles(t, senders, sender, verifier, func(id uuid.UUID) string {
		return "INSERT INTO orders (id) VALUES (UNHEX('" + strings.ReplaceAll(id.String(), "-", "") + "'))"
	})
	expectRights(t, inspectorOf(t, verifier))
	withCanary := bridge.OwnTable{Table: own.Table, Column: own.Column, Canary: "INSERT INTO orders (id) VALUES (UNHEX(REPLACE($id, '-', '')))"}
	ledger, err := mysql.OpenOwnTable(t.Context(), admin, withCanary)
	must(t, err)
	testCanary(t, admin, "orders", ledger)
	if _, err := mysql.OpenOwnTable(t.Context(), strangers, own); err == nil || !strings.Contains(err.Error(), "GRANT SELECT") {
		t.Errorf("open without the right to read: %v", err)
	}
}

// expectRights expects a diagnosis that finds all rights of an own table's verifier, and requires
// no rights to stage again or to sweep.
func expectRights(t *testing.T, d inspect.Diagnoser) {
	t.Helper()
	findings, err := d.Diagnose(t.Context())
	must(t, err)
	checks := 0
	for _, f := range findings {
		if strings.HasPrefix(f.Check, "rights") {
			checks++
			if f.Check != "rights of a verifier" || f.Level != inspect.OK {
				t.Errorf("diagnose asks for rights that are not needed: %+v", f)
			}
		}
	}
	if checks != 1 {
		t.Errorf("%d checks of rights, must be 1", checks)
	}
}

// testCanary proves a ledger whose proof writes into its own table, and checks that no row stays
// there.
func testCanary(t *testing.T, db *sql.DB, table string, ledger driver.Ledger) {
	t.Helper()
	count := func() (n int) {
		must(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
		return n
	}
	before := count()
	must(t, prove(t, ledger))
	if after := count(); after != before {
		t.Errorf("there were %d rows, there are %d", before, after)
	}
}

func testOwnTableRoles(t *testing.T, senders *sql.DB, sender, verifier driver.Ledger, insert func(uuid.UUID) string) {
	t.Helper()
	must(t, prove(t, verifier))
	id := newID()
	tx := begin(t, senders)
	_, err := tx.ExecContext(t.Context(), insert(id))
	must(t, err)
	must(t, sender.Record(t.Context(), bridge.SQL(tx), driver.Plain(id)))
	outcome, _, err := verifier.Settle(t.Context(), id, time.Second)
	must(t, err)
	if outcome != driver.StillOpen {
		t.Errorf("settle says %q", outcome)
	}
	must(t, tx.Commit())
	expectOutcome(t, verifier, id, driver.Committed)
	must(t, verifier.Check(t.Context()))
}

// A Record that needs more locks than the server has room for fails with that reason, and nothing
// is recorded.
func testPostgresOwnTableWithoutRoomForLocks(t *testing.T, server *servers.Postgres) {
	db := migratedAt(t, server.URL())
	execute(t, db, "CREATE TABLE orders (id uuid PRIMARY KEY)")
	ledger, err := postgres.OpenOwnTable(t.Context(), db, bridge.OwnTable{Table: "orders", Column: "id"})
	must(t, err)
	ids := make([]uuid.UUID, 20_000)
	for i := range ids {
		ids[i] = newID()
	}
	tx := begin(t, db)
	_, err = tx.ExecContext(t.Context(), "INSERT INTO orders SELECT unnest($1::text::uuid[])", "{"+strings.Join(texts(ids), ",")+"}")
	must(t, err)
	if err := ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(ids...)); err == nil || !strings.Contains(err.Error(), "max_locks_per_transaction") {
		t.Fatalf("record: %v", err)
	}
	must(t, tx.Rollback())
	expectOutcome(t, ledger, ids[0], driver.RolledBack)
}

func TestPostgresOwnTablesIdentityIsTheTables(t *testing.T) {
	t.Parallel()
	_, db := migrated(t)
	execute(t, db, "CREATE TABLE orders (id uuid PRIMARY KEY); CREATE SCHEMA other; CREATE TABLE other.orders (id uuid PRIMARY KEY)")
	open := func(own bridge.OwnTable) (driver.Ledger, error) { return postgres.OpenOwnTable(t.Context(), db, own) }
	testOwnTablesIdentity(t, openLedger(t, db), open, "orders", "public.orders", "other.orders")
}

func testMariaDBOwnTablesIdentity(t *testing.T) {
	config, db := mariaDB(t)
	execute(t, db, "CREATE TABLE orders (id BINARY(16) PRIMARY KEY) ENGINE = InnoDB")
	execute(t, db, "CREATE TABLE other (id BINARY(16) PRIMARY KEY) ENGINE = InnoDB")
	open := func(own bridge.OwnTable) (driver.Ledger, error) { return mysql.OpenOwnTable(t.Context(), db, own) }
	testOwnTablesIdentity(t, openMySQL(t, db), open, "orders", config.DBName+".orders", "other")
}

// Sender and verifier may spell the table's name differently. The identity belongs to the table:
// the ledger's tables and other tables have different ones.
func testOwnTablesIdentity(t *testing.T, ledger driver.Ledger, open func(bridge.OwnTable) (driver.Ledger, error), plain, full, other string) {
	t.Helper()
	identity := func(table string) uuid.UUID {
		own, err := open(bridge.OwnTable{Table: table, Column: "id"})
		must(t, err)
		return own.Identity()
	}
	if one, same := identity(plain), identity(full); one != same {
		t.Errorf("%s is %s, and %s is %s", plain, one, full, same)
	} else if one == identity(other) || one == ledger.Identity() {
		t.Errorf("%s has the same identity as %s or bridge_ledger", plain, other)
	}
}
