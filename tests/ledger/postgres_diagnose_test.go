package ledger_test

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// The rights of a verifier that does all its work and also sees which sessions hold a message up.
var postgresVerifier = slices.Clip(append(slices.Clone(sweeperRights), "UPDATE (stage_at) ON bridge_ledger", "pg_read_all_stats"))

// fakeClock gives the role's sessions another clock than the server's.
const fakeClock = "CREATE SCHEMA fake; GRANT USAGE ON SCHEMA fake TO PUBLIC; " +
	"CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT pg_catalog.clock_timestamp() + interval '%s' $$; " +
	"ALTER ROLE $role SET search_path = fake, pg_catalog, public"

func changesDatabase(statement string) bool {
	return !strings.HasPrefix(statement, "ALTER SYSTEM ") && !strings.HasPrefix(statement, "ALTER ROLE ")
}

// Each fault is found by its check, and without the faults nothing is found.
func testPostgresDiagnose(t *testing.T, server *servers.Postgres) {
	root := connect(t, server.URL())
	database := func(t *testing.T) (address string, admin *sql.DB) {
		t.Helper()
		name := "d_" + strings.ReplaceAll(uuid.NewString(), "-", "")
		executeAll(t, root, "CREATE DATABASE "+name)
		address = server.DatabaseURL(name)
		return address, migratedAt(t, address)
	}
	t.Run("a healthy server is well", func(t *testing.T) {
		address, _ := database(t)
		_, at := servertest.PostgresRole(t, address, append(postgresVerifier, "UPDATE (recorded_at) ON bridge_ledger")...)
		ledger := openLedger(t, connect(t, at))
		ledgertest.Well(t, inspectorOf(t, ledger))
		ledgertest.ReadsCarried(t, ledger, inspectorOf(t, ledger), nil)
	})
	t.Run("the fixes give a login its rights", func(t *testing.T) {
		address, admin := database(t)
		_, at := servertest.PostgresRole(t, address, "pg_read_all_stats", "SELECT ON bridge_identity", "SELECT ON bridge_ledger_version")
		fixRights(t, admin, inspectorOf(t, openLedger(t, connect(t, at))))
	})
	t.Run("an own table is well", func(t *testing.T) {
		address, admin := database(t)
		execute(t, admin, "CREATE TABLE orders (id uuid PRIMARY KEY)")
		_, at := servertest.PostgresRole(t, address, append(postgresVerifier, "SELECT ON orders")...)
		db := connect(t, at)
		ledger, err := postgres.OpenOwnTable(t.Context(), db, bridge.OwnTable{Table: "orders", Column: "id"})
		must(t, err)
		ledgertest.Well(t, inspectorOf(t, ledger))
		execute(t, admin, "ALTER TABLE orders SET UNLOGGED")
		ledgertest.Finds(t, inspectorOf(t, ledger), "ledger", inspect.Error, "unlogged")
	})
	sharedAddress, sharedAdmin := database(t) // for changes of the server or of a login
	for name, c := range map[string]struct {
		do, undo []string // $role is the login
		lacks    string   // a right
		check    string
		level    inspect.Level
		says     string
	}{
		"a copy":                  {do: []string{"UPDATE bridge_identity SET identity = gen_random_uuid()"}, check: "ledger", level: inspect.Error, says: "identity"},
		"fsync off":               {do: []string{"ALTER SYSTEM SET fsync = off"}, undo: []string{"ALTER SYSTEM RESET fsync"}, check: "fsync", level: inspect.Error, says: "off"},
		"full_page_writes off":    {do: []string{"ALTER SYSTEM SET full_page_writes = off"}, undo: []string{"ALTER SYSTEM RESET full_page_writes"}, check: "full_page_writes", level: inspect.Error, says: "off"},
		"relaxed commits":         {do: []string{"ALTER ROLE $role SET synchronous_commit = off"}, check: "durability", level: inspect.Error, says: "off for this login"},
		"another's commits":       {do: []string{"ALTER ROLE postgres SET synchronous_commit = off"}, undo: []string{"ALTER ROLE postgres RESET synchronous_commit"}, check: "durability", level: inspect.Warning, says: "off for postgres"},
		"the database's":          {do: []string{"DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET synchronous_commit = off'; END $$", "ALTER ROLE $role SET synchronous_commit = on"}, check: "durability", level: inspect.Warning, says: "all roles in database"},
		"local commits":           {do: []string{"ALTER ROLE $role SET synchronous_commit = local", "ALTER SYSTEM SET synchronous_standby_names = 'x'"}, undo: []string{"ALTER SYSTEM RESET synchronous_standby_names"}, check: "durability", level: inspect.Warning, says: "local"},
		"serializable":            {do: []string{"ALTER ROLE $role SET default_transaction_isolation = serializable"}, check: "isolation", level: inspect.Warning, says: "serializable"},
		"statement_timeout":       {do: []string{"ALTER ROLE $role SET statement_timeout = '10s'"}, check: "time-outs", level: inspect.Warning, says: "statement_timeout is 10s"},
		"idle time-out":           {do: []string{"ALTER ROLE $role SET idle_in_transaction_session_timeout = '20s'"}, check: "time-outs", level: inspect.Warning, says: "idle_in_transaction_session_timeout is 20s"},
		"few connections":         {do: []string{"ALTER ROLE $role CONNECTION LIMIT 10"}, check: "connections left", level: inspect.Warning, says: "of 10"},
		"a database's few":        {do: []string{"DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' CONNECTION LIMIT 12'; END $$"}, check: "connections left", level: inspect.Warning, says: "of 12"},
		"no statistics":           {do: []string{"ALTER SYSTEM SET track_activities = off"}, undo: []string{"ALTER SYSTEM RESET track_activities"}, check: "holders of a row", level: inspect.Warning, says: "track_activities is off"},
		"others unseen":           {lacks: "pg_read_all_stats", check: "holders of a row", level: inspect.Warning, says: "pg_read_all_stats"},
		"autovacuum off":          {do: []string{"ALTER SYSTEM SET autovacuum = off"}, undo: []string{"ALTER SYSTEM RESET autovacuum"}, check: "autovacuum", level: inspect.Warning, says: "whole server"},
		"autovacuum off for it":   {do: []string{"ALTER TABLE bridge_ledger SET (autovacuum_enabled = false)"}, check: "autovacuum", level: inspect.Warning, says: "bridge_ledger"},
		"unlogged":                {do: []string{"ALTER TABLE bridge_ledger SET UNLOGGED"}, check: "logged tables", level: inspect.Error, says: "bridge_ledger"},
		"row-level security":      {do: []string{"ALTER TABLE bridge_ledger ENABLE ROW LEVEL SECURITY"}, check: "row-level security", level: inspect.Error, says: "bridge_ledger"},
		"no right to delete":      {lacks: "SELECT, DELETE ON bridge_ledger", check: "rights of a verifier", level: inspect.Error, says: "DELETE ON bridge_ledger"},
		"no right to a function":  {do: []string{"REVOKE EXECUTE ON FUNCTION bridge_forget FROM PUBLIC"}, check: "rights of a verifier", level: inspect.Error, says: "EXECUTE ON FUNCTION bridge_forget"},
		"no right to stage again": {lacks: "UPDATE (stage_at) ON bridge_ledger", check: "rights to stage again", level: inspect.Error, says: "lacks UPDATE (stage_at) ON bridge_ledger: a carried message whose staged copy is lost"},
		"no right to claim":       {do: []string{"REVOKE EXECUTE ON FUNCTION bridge_claim FROM PUBLIC"}, check: "rights to stage again", level: inspect.Error, says: "EXECUTE ON FUNCTION bridge_claim"},
		"no right to sweep":       {lacks: "UPDATE ON bridge_watermark", check: "rights to sweep", level: inspect.Warning, says: "UPDATE ON bridge_watermark"},
		"several writing nodes": {do: []string{"UPDATE pg_extension SET extname = 'spock' WHERE extname = 'plpgsql'"},
			check: "one writing node", level: inspect.Warning, says: "extension spock"},
		"orphans": {do: []string{"INSERT INTO bridge_ledger SELECT gen_random_uuid(), now() - interval '8 days' FROM generate_series(1, 3)"},
			check: "orphans", level: inspect.Warning, says: "rows more than 7 days old: 3; the database lost a deletion in a crash, a verifier died during its proof, or messages of committed transactions were lost"},
		"overdue": {do: []string{"INSERT INTO bridge_ledger SELECT ('0192a0c0-0000-7000-8000-00000000000' || n)::uuid, now() - interval '1 h', 'x', now() - n * interval '4 min' FROM generate_series(1, 3) n"},
			check: "carried messages", level: inspect.Warning, says: "past their stage time: 3; the first, 0192a0c0-0000-7000-8000-000000000003, for 12m"},
		"dead rows": {do: []string{"ALTER TABLE bridge_ledger SET (autovacuum_enabled = false)",
			"INSERT INTO bridge_ledger SELECT gen_random_uuid() FROM generate_series(1, 100000)", "DELETE FROM bridge_ledger", "ANALYZE bridge_ledger"},
			check: "rows in the ledger", level: inspect.Warning, says: "dead"},
		"a clock somewhat wrong": {do: []string{strings.ReplaceAll(fakeClock, "%s", "10 s")}, check: "clock", level: inspect.Warning, says: "10"},
		"a wrong clock":          {do: []string{strings.ReplaceAll(fakeClock, "%s", "-5 min")}, check: "clock", level: inspect.Error, says: "-5m"},
	} {
		t.Run(name, func(t *testing.T) {
			address, admin := sharedAddress, sharedAdmin
			if slices.ContainsFunc(c.do, changesDatabase) {
				address, admin = database(t)
			}
			var rights []string
			for _, r := range postgresVerifier {
				if r != c.lacks {
					rights = append(rights, r)
				}
			}
			role, at := servertest.PostgresRole(t, address, rights...)
			ledger := openLedger(t, connect(t, at))
			t.Cleanup(func() {
				for _, statement := range append(c.undo, "SELECT pg_reload_conf()") {
					_, err := admin.ExecContext(context.Background(), statement)
					must(t, err)
				}
			})
			for _, statement := range append(c.do, "SELECT pg_reload_conf()") {
				executeAll(t, admin, strings.ReplaceAll(statement, "$role", role))
			}
			if strings.Contains(strings.Join(c.do, ""), "ALTER ROLE $role SET") { // for new sessions
				ledger = openLedger(t, connect(t, at))
			}
			ledgertest.Finds(t, inspectorOf(t, ledger), c.check, c.level, c.says)
		})
	}
	t.Run("a receiver's commits", func(t *testing.T) {
		address, admin := database(t)
		role, at := servertest.PostgresRole(t, address)
		inbox := diagnoser(func(ctx context.Context) ([]inspect.Finding, error) {
			return postgres.DiagnoseInbox(ctx, connect(t, at))
		})
		ledgertest.Finds(t, inbox, "durability", inspect.OK, "")
		execute(t, admin, "ALTER ROLE "+role+" SET synchronous_commit = off")
		ledgertest.Finds(t, inbox, "durability", inspect.Error, "message was acked")
	})
	t.Run("a transaction that has been open for long", func(t *testing.T) {
		address, admin := database(t)
		role, at := servertest.PostgresRole(t, address, postgresVerifier...)
		executeAll(t, admin, strings.ReplaceAll(strings.ReplaceAll(fakeClock, "%s", "2 h"), "$role", role))
		tx := begin(t, admin)
		_, err := tx.ExecContext(t.Context(), "SELECT 1")
		must(t, err)
		ledgertest.Finds(t, inspectorOf(t, openLedger(t, connect(t, at))), "oldest open transaction", inspect.Warning, "2h")
	})
	t.Run("a prepared transaction holds a message up", func(t *testing.T) {
		address, admin := database(t)
		role, at := servertest.PostgresRole(t, address, postgresVerifier...)
		id := newID()
		tx := recorded(t, openLedger(t, admin), id)
		_, err := tx.ExecContext(t.Context(), "PREPARE TRANSACTION 'left behind'")
		must(t, err)
		must(t, tx.Rollback()) // the prepared transaction has left the session
		t.Cleanup(func() {
			_, err := admin.ExecContext(context.Background(), "ROLLBACK PREPARED 'left behind'")
			must(t, err)
		})
		ledger := openLedger(t, connect(t, at))
		found, err := inspectorOf(t, ledger).Holders(t.Context(), id)
		must(t, err)
		listed, err := inspectorOf(t, ledger).OpenTransactions(t.Context(), 0, 10)
		must(t, err)
		for what, got := range map[string][]inspect.Holder{"the holders": found, "the open transactions": listed} {
			if len(got) != 1 || got[0].Session != "prepared left behind" || got[0].Login != "postgres" || got[0].Since.IsZero() {
				t.Errorf("%s are %+v", what, got)
			}
		}
		executeAll(t, admin, strings.ReplaceAll(strings.ReplaceAll(fakeClock, "%s", "2 h"), "$role", role))
		ledgertest.Finds(t, inspectorOf(t, openLedger(t, connect(t, at))), "prepared transactions", inspect.Warning, "2h")
	})
	t.Run("a pool of one connection", func(t *testing.T) {
		_, admin := database(t)
		admin.SetMaxOpenConns(1)
		ledgertest.Finds(t, inspectorOf(t, openLedger(t, admin)), "connection pool", inspect.Error, "pool allows 1 connection")
	})
}
