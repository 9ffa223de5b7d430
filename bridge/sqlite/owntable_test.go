package sqlite_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/sqlite"
)

func TestUnusableOwnTableIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ ddl, table, column, says string }{
		"no table":         {"", "orders", "id", "no table orders"},
		"no column":        {"CREATE TABLE orders (n INT)", "orders", "id", "no column id"},
		"blob":             {"CREATE TABLE orders (id BLOB PRIMARY KEY)", "orders", "id", "must be TEXT"},
		"number":           {"CREATE TABLE orders (id INTEGER PRIMARY KEY)", "orders", "id", "must be TEXT"},
		"no index":         {"CREATE TABLE orders (id TEXT)", "orders", "id", "unique index"},
		"plain index":      {"CREATE TABLE orders (id TEXT); CREATE INDEX i ON orders (id)", "orders", "id", "unique index"},
		"partial index":    {"CREATE TABLE orders (id TEXT, n INT); CREATE UNIQUE INDEX i ON orders (id) WHERE n > 0", "orders", "id", "unique index"},
		"index on two":     {"CREATE TABLE orders (id TEXT, n INT, PRIMARY KEY (id, n))", "orders", "id", "unique index"},
		"index on a term":  {"CREATE TABLE orders (id TEXT); CREATE UNIQUE INDEX i ON orders (lower(id))", "orders", "id", "unique index"},
		"a view":           {"CREATE VIEW orders AS SELECT 'x' AS id", "orders", "id", "no table orders"},
		"another file":     {"", "other.orders", "id", "ledger's file"},
		"an SQL injection": {"CREATE TABLE orders (id TEXT PRIMARY KEY)", "orders", `id" FROM orders; DROP TABLE orders; --`, "no column"},
	} {
		t.Run(name, func(t *testing.T) {
			_, ledger := newLedger(t, "")
			_, err := ledger.DB().ExecContext(t.Context(), c.ddl)
			must(t, err)
			_, err = sqlite.OpenOwnTable(t.Context(), ledger.DB(), bridge.OwnTable{Table: c.table, Column: c.column})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("open: %v, must say %q", err, c.says)
			}
		})
	}
}

// A message is judged only by the table that recorded it: each table is a ledger of its own. The
// identity depends neither on the opener nor on the spelling of the table's name.
func TestAnOwnTableHasAnIdentityOfItsOwn(t *testing.T) {
	file, ledger := newLedger(t, "")
	_, err := ledger.DB().ExecContext(t.Context(), "CREATE TABLE orders (id TEXT PRIMARY KEY, other TEXT UNIQUE); CREATE TABLE bills (id TEXT PRIMARY KEY)")
	must(t, err)
	identity := func(ledger *sqlite.Ledger, table, column string) uuid.UUID {
		own, err := sqlite.OpenOwnTable(t.Context(), ledger.DB(), bridge.OwnTable{Table: table, Column: column})
		must(t, err)
		return own.Identity()
	}
	orders := identity(ledger, "orders", "id")
	if again := identity(openLedger(t, file, ""), "main.orders", "id"); again != orders {
		t.Errorf("the identity was %s, is %s", orders, again)
	}
	_, elsewhere := newLedger(t, "")
	_, err = elsewhere.DB().ExecContext(t.Context(), "CREATE TABLE orders (id TEXT PRIMARY KEY)")
	must(t, err)
	for name, other := range map[string]uuid.UUID{
		"bridge_ledger": ledger.Identity(), "another table": identity(ledger, "bills", "id"),
		"another column": identity(ledger, "orders", "other"), "another database": identity(elsewhere, "orders", "id"),
	} {
		if other == orders {
			t.Errorf("%s has the same identity", name)
		}
	}
}
