package sqlserver_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/sqlserver"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/tds"
)

var orders = bridge.OwnTable{Table: "dbo.orders", Column: "id"}

const ordersTable = "CREATE TABLE orders (n int, id uniqueidentifier NOT NULL UNIQUE)"

// openOrders creates the table of orders in a new database, and opens it.
func openOrders(t *testing.T, address string) driver.Ledger {
	t.Helper()
	db := connect(t, address)
	execute(t, db, ordersTable)
	ledger, err := sqlserver.OpenOwnTable(t.Context(), db, orders)
	must(t, err)
	return ledger
}

func ordersOnStandIn(t *testing.T, options *tds.Options) (*tds.Server, driver.Ledger) {
	t.Helper()
	server := servertest.SQLServerStandIn(t, options)
	return server, openOrders(t, newDatabase(t, server.URL("master"), true))
}

func insertOrder(t *testing.T, tx *sql.Tx, id uuid.UUID) {
	t.Helper()
	execute(t, tx, fmt.Sprintf("INSERT INTO orders (id) VALUES ('%s')", id))
}

// placed begins a transaction, and inserts and records an order in it.
func placed(t *testing.T, ledger driver.Ledger, id uuid.UUID) *sql.Tx {
	t.Helper()
	tx := begin(t, ledger.DB(), nil)
	insertOrder(t, tx, id)
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(id)))
	return tx
}

func TestAnUnusableOwnTableIsRefused(t *testing.T) {
	const table = "CREATE TABLE orders (id uniqueidentifier NOT NULL, n int)"
	for name, c := range map[string]struct {
		statements []string
		own        bridge.OwnTable
		says       string
	}{
		"no table":         {nil, orders, "no table dbo.orders"},
		"another schema":   {[]string{ordersTable}, bridge.OwnTable{Table: "sys.orders", Column: "id"}, "no table sys.orders"},
		"no column":        {[]string{"CREATE TABLE orders (n int)"}, orders, "no column id"},
		"strings":          {[]string{"CREATE TABLE orders (id nvarchar(36) NOT NULL PRIMARY KEY)"}, orders, "is nvarchar, must be uniqueidentifier"},
		"bytes":            {[]string{"CREATE TABLE orders (id binary(16) NOT NULL PRIMARY KEY)"}, orders, "is binary, must be uniqueidentifier"},
		"no index":         {[]string{table}, orders, "unique index"},
		"plain index":      {[]string{table, "CREATE INDEX i ON orders (id)"}, orders, "unique index"},
		"index on two":     {[]string{table, "CREATE UNIQUE INDEX i ON orders (id, n)"}, orders, "unique index"},
		"index on another": {[]string{table, "CREATE UNIQUE INDEX i ON orders (n) INCLUDE (id)"}, orders, "unique index"},
		"filtered index":   {[]string{table, "CREATE UNIQUE INDEX i ON orders (id) WHERE n > 0"}, orders, "unique index"},
		"disabled index":   {[]string{table, "CREATE UNIQUE INDEX i ON orders (id)", "ALTER INDEX i ON orders DISABLE"}, orders, "unique index"},
		"columnstore":      {[]string{table, "CREATE UNIQUE INDEX i ON orders (id)", "CREATE CLUSTERED COLUMNSTORE INDEX c ON orders"}, orders, "columnstore"},
		"no row locks":     {[]string{table, "CREATE UNIQUE INDEX i ON orders (id)", "ALTER INDEX ALL ON orders SET (ALLOW_ROW_LOCKS = OFF)"}, orders, "ALLOW_ROW_LOCKS = ON"},
		"a view":           {[]string{"CREATE VIEW orders AS SELECT NEWID() AS id"}, orders, "not a table, but VIEW"},
		"no names":         {nil, bridge.OwnTable{}, "table has no name"},
		"an SQL injection": {[]string{ordersTable}, bridge.OwnTable{Table: "orders", Column: "id] FROM orders; DROP TABLE orders; --"}, "no column"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := connect(t, newDatabase(t, servertest.SQLServer(t, nil), true))
			for _, statement := range c.statements {
				execute(t, db, statement)
			}
			if _, err := sqlserver.OpenOwnTable(t.Context(), db, c.own); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("open: %v, must say %q", err, c.says)
			}
		})
	}
}

// A real server creates such a table only in a database that was prepared for it.
func TestAMemoryOptimizedOwnTableIsRefused(t *testing.T) {
	_, ledger := onStandIn(t, nil)
	execute(t, ledger.DB(), "CREATE TABLE orders (id uniqueidentifier NOT NULL PRIMARY KEY NONCLUSTERED) WITH (MEMORY_OPTIMIZED = ON)")
	if _, err := sqlserver.OpenOwnTable(t.Context(), ledger.DB(), orders); err == nil || !strings.Contains(err.Error(), "memory-optimized") {
		t.Errorf("open: %v", err)
	}
}

func TestAUniqueIndexThatIncludesOthersWillDo(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		db := connect(t, address)
		execute(t, db, "CREATE TABLE orders (id uniqueidentifier NOT NULL, n int)")
		execute(t, db, "CREATE UNIQUE INDEX i ON orders (id) INCLUDE (n)")
		ledger, err := sqlserver.OpenOwnTable(t.Context(), db, bridge.OwnTable{Table: "orders", Column: "id"})
		must(t, err)
		id := newID()
		tx := placed(t, ledger, id)
		expectOutcome(t, ledger, id, driver.StillOpen)
		must(t, tx.Commit())
		expectOutcome(t, ledger, id, driver.Committed)
	})
}

func TestAnOwnTableThatIsNoLongerUsableFailsTheCheck(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		ledger := openOrders(t, address)
		must(t, ledger.Check(t.Context()))
		execute(t, ledger.DB(), "DROP TABLE orders")
		for doing, err := range map[string]error{"check": ledger.Check(t.Context()), "prove": prove(t, ledger)} {
			if err == nil || errors.Is(err, bridge.ErrProof) || !strings.Contains(err.Error(), "no table dbo.orders") {
				t.Errorf("%s: %v", doing, err)
			}
		}
	})
}

// Neither sender nor verifier writes to the table. Of the rights on bridge_ledger the sender
// needs only the right to see it.
func TestOwnTableLeastRights(t *testing.T) {
	server, ledger := ordersOnStandIn(t, nil)
	id := newID()
	tx := begin(t, ledger.DB(), nil)
	insertOrder(t, tx, id)
	for _, right := range []string{"INSERT", "UPDATE", "DELETE", "ALTER"} {
		server.Deny(right + " ON orders")
	}
	must(t, prove(t, ledger))
	for _, right := range []string{"SELECT", "INSERT", "DELETE"} {
		server.Deny(right + " ON bridge_ledger")
	}
	sender, err := sqlserver.OpenOwnTable(t.Context(), ledger.DB(), orders)
	must(t, err)
	must(t, sender.Record(t.Context(), bridge.SQL(tx), driver.Plain(id)))
	must(t, tx.Commit())
	expectCommitted(t, ledger, id, true)
	expectOutcome(t, ledger, id, driver.Committed)
	forget(t, ledger, id)
	expectOutcome(t, ledger, id, driver.Committed)
}

// An own table carries no messages, and its rows are not swept.
func TestDiagnoseOfAnOwnTableAsksForNoRightToStageOrSweep(t *testing.T) {
	server, ledger := ordersOnStandIn(t, nil)
	for _, right := range []string{"UPDATE ON bridge_ledger", "SELECT ON bridge_watermark", "UPDATE ON bridge_watermark"} {
		server.Deny(right)
	}
	findings, err := sqlserver.InspectOwnTable(ledger.(*sqlserver.OwnLedger)).Diagnose(t.Context())
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

func TestAnOwnTableThatMayNotBeReadIsRefusedWithTheGrant(t *testing.T) {
	for right, says := range map[string]string{
		"SELECT ON orders":                 "GRANT SELECT ON [dbo].[orders]",
		"VIEW DEFINITION ON orders":        "GRANT SELECT ON it", // it seems not to exist
		"VIEW DEFINITION ON bridge_ledger": "GRANT SELECT ON bridge_ledger",
	} {
		t.Run(right, func(t *testing.T) {
			server, ledger := ordersOnStandIn(t, nil)
			server.Deny(right)
			_, openErr := sqlserver.OpenOwnTable(t.Context(), ledger.DB(), orders)
			for doing, err := range map[string]error{"open": openErr, "check": ledger.Check(t.Context())} {
				if err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("%s: %v, must say %q", doing, err, says)
				}
			}
		})
	}
}

func TestRecordOfAnOwnTableWorksInEveryTransaction(t *testing.T) {
	inEveryTransaction(t, func(t *testing.T, db *sql.DB, tx *sql.Tx, _ bool) {
		if _, err := db.ExecContext(t.Context(), ordersTable); err != nil && !strings.Contains(err.Error(), "already") {
			t.Fatal(err)
		}
		ledger, err := sqlserver.OpenOwnTable(t.Context(), db, orders)
		must(t, err)
		id, other := newID(), newID()
		insertOrder(t, tx, id)
		before := settings(t, tx)
		must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(id)))
		if err := ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(id, other)); !errors.Is(err, bridge.ErrNoRow) {
			t.Errorf("record an ID without a row: %v, must be %v", err, bridge.ErrNoRow)
		}
		if after := settings(t, tx); after != before {
			t.Errorf("the settings were %s, are %s", before, after)
		}
		expectOutcome(t, ledger, id, driver.StillOpen)
		must(t, tx.Commit())
		expectOutcome(t, ledger, id, driver.Committed)
	})
}

// With XACT_ABORT ON an attention in the caller's transaction would roll back all its work.
func TestRecordOfAnOwnTableSendsNoAttention(t *testing.T) {
	server, ledger := ordersOnStandIn(t, nil)
	id := newID()
	tx := begin(t, ledger.DB(), nil)
	insertOrder(t, tx, id)
	before := server.Attentions()
	server.Inject(tds.LateEnd)
	must(t, ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(id)))
	must(t, tx.Commit())
	if sent := server.Attentions() - before; sent != 0 {
		t.Errorf("%d attentions were sent", sent)
	}
	expectOutcome(t, ledger, id, driver.Committed)
}

// A fault that the catalogue does not show must be found before the first settle.
func TestAnOwnTableIsTriedWithTheHintsOfASettle(t *testing.T) {
	server, ledger := ordersOnStandIn(t, nil)
	must(t, ledger.Check(t.Context()))
	server.Deny("ROWLOCK ON orders")
	_, openErr := sqlserver.OpenOwnTable(t.Context(), ledger.DB(), orders)
	for doing, err := range map[string]error{"open": openErr, "check": ledger.Check(t.Context())} {
		if err == nil || !strings.Contains(err.Error(), "granularity") {
			t.Errorf("%s: %v", doing, err)
		}
	}
}

// The ID that the trial uses may have a locked row.
func TestAnOwnTableOpensBesideALockedRow(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		ledger := openOrders(t, address)
		insertOrder(t, begin(t, ledger.DB(), nil), uuid.Nil)
		_, err := sqlserver.OpenOwnTable(t.Context(), ledger.DB(), orders)
		must(t, err)
		must(t, ledger.Check(t.Context()))
	})
}

const ordersCanary = "INSERT INTO orders (id) VALUES ($id)"

// Only its owner sees a security policy in the catalogue.
func TestACanaryFindsAPolicyThatHidesRows(t *testing.T) {
	server, ledger := ordersOnStandIn(t, nil)
	withCanary := orders
	withCanary.Canary = ordersCanary
	proven, err := sqlserver.OpenOwnTable(t.Context(), ledger.DB(), withCanary)
	must(t, err)
	must(t, prove(t, proven))
	id := newID()
	must(t, placed(t, ledger, id).Commit())
	server.Deny("ROWS ON orders")
	expectOutcome(t, ledger, id, driver.RolledBack) // the wrong outcome that the canary prevents
	must(t, prove(t, ledger))
	if err := prove(t, proven); !errors.Is(err, bridge.ErrProof) || !strings.Contains(err.Error(), "row-level security") {
		t.Errorf("prove: %v, must be %v", err, bridge.ErrProof)
	}
}

// A canary leaves no row behind.
func TestAnOwnTableIsProvenByItsOwnIndex(t *testing.T) {
	onBoth(t, func(t *testing.T, address string) {
		db := connect(t, address)
		execute(t, db, ordersTable)
		withCanary := orders
		withCanary.Canary = ordersCanary
		ledger, err := sqlserver.OpenOwnTable(t.Context(), db, withCanary)
		must(t, err)
		must(t, prove(t, ledger))
		var n int
		must(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM orders").Scan(&n))
		if n != 0 {
			t.Errorf("%d rows are left", n)
		}
		withCanary.Canary = "INSERT INTO nowhere (id) VALUES ($id)"
		ledger, err = sqlserver.OpenOwnTable(t.Context(), db, withCanary)
		must(t, err)
		if err := prove(t, ledger); err == nil || errors.Is(err, bridge.ErrProof) || !strings.Contains(err.Error(), "canary") {
			t.Errorf("prove with a canary that fails: %v", err)
		}
	})
}

// Sender and verifier may spell the table's name differently. The identity belongs to the table,
// and differs from the database's.
func TestAnOwnTablesIdentityIsTheTables(t *testing.T) {
	_, ledger := ordersOnStandIn(t, nil)
	plain, err := sqlserver.OpenOwnTable(t.Context(), ledger.DB(), bridge.OwnTable{Table: "orders", Column: "id"})
	must(t, err)
	whole, err := sqlserver.Open(t.Context(), ledger.DB())
	must(t, err)
	if plain.Identity() != ledger.Identity() || plain.Identity() == whole.Identity() {
		t.Errorf("orders is %s, dbo.orders %s, bridge_ledger %s", plain.Identity(), ledger.Identity(), whole.Identity())
	}
}

// A login without UNMASK reads other values from a masked column, but compares the real ones.
func TestAMaskedColumnIsNotShown(t *testing.T) {
	server := servertest.SQLServerStandIn(t, nil)
	server.Deny("UNMASK")
	db := connect(t, newDatabase(t, server.URL("master"), true))
	execute(t, db, "CREATE TABLE orders (n int, id uniqueidentifier MASKED WITH (FUNCTION = 'default()') NOT NULL UNIQUE)")
	ledger, err := sqlserver.OpenOwnTable(t.Context(), db, orders)
	must(t, err)
	id := newID()
	must(t, placed(t, ledger, id).Commit())
	found, _, err := ledger.Committed(t.Context(), []uuid.UUID{newID(), id})
	must(t, err)
	if !slices.Equal(found, []uuid.UUID{id}) {
		t.Errorf("the lookup finds %v, must find %v", found, id)
	}
	expectOutcome(t, ledger, id, driver.Committed)
}
