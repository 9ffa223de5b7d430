package ledger_test

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	seam "github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/ledgertest"
	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/bridge/mysql"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// The rights of a verifier that does all its work and also sees which sessions hold a message up.
var mariaDBVerifier = slices.Clip(append(slices.Clone(sweeperRights), "UPDATE (stage_at, claimed_by) ON bridge_ledger", "PROCESS ON *.*"))

func openMySQL(t *testing.T, db *sql.DB) *mysql.Ledger {
	t.Helper()
	ledger, err := mysql.Open(t.Context(), db)
	must(t, err)
	return ledger
}

// Each fault is found by its check, and without the faults nothing is found.
func TestMariaDBDiagnose(t *testing.T) {
	t.Parallel()
	server := servertest.StartMariaDB(t, &servers.MariaDBOptions{Config: []string{"log-bin=log", "sync-binlog=1", "server-id=1", "max-allowed-packet=22M",
		"performance-schema=ON", "performance-schema-consumer-events-statements-current=ON"}})
	words := flavourOf(t, connectMariaDB(t, mariaDBConfig(t, server.DSN())))
	mariaDBVerifier := mariaDBVerifier
	if words.watch != "" {
		mariaDBVerifier = append(slices.Clip(mariaDBVerifier), words.watch)
	}
	database := func(t *testing.T) (*driver.Config, *sql.DB) {
		t.Helper()
		root := connectMariaDB(t, mariaDBConfig(t, server.DSN()))
		name := "d_" + strings.ReplaceAll(uuid.NewString(), "-", "")
		executeAll(t, root, "CREATE DATABASE "+name)
		config := mariaDBConfig(t, server.DatabaseDSN(name))
		config.ConnectionAttributes = "program_name:shop"
		db := connectMariaDB(t, config)
		must(t, migrate.Ledger(t.Context(), db, migrate.MySQL))
		return config, db
	}
	if words.watch != "" {
		t.Run("locks unseen", func(t *testing.T) {
			config, admin := database(t)
			unseeing := mariaDBVerifier[:len(mariaDBVerifier)-1]
			ledgertest.Finds(t, inspectorOf(t, openMySQL(t, mariaDBRole(t, config, admin, unseeing...))), "holders of a row", inspect.Warning, "data_lock_waits")
		})
	}
	t.Run("a healthy server is well", func(t *testing.T) {
		config, admin := database(t)
		ledger := openMySQL(t, mariaDBRole(t, config, admin, append(mariaDBVerifier, "UPDATE (recorded_at) ON bridge_ledger")...))
		ledgertest.Well(t, inspectorOf(t, ledger))
		ledgertest.ReadsCarried(t, ledger, inspectorOf(t, ledger), changedSince)
	})
	t.Run("the fixes give a login its rights", func(t *testing.T) {
		config, admin := database(t)
		rights := slices.Concat(mariaDBVerifier[len(sweeperRights)+1:], []string{"INSERT ON bridge_ledger", "SELECT ON bridge_identity", "SELECT ON bridge_ledger_version"})
		fixRights(t, admin, inspectorOf(t, openMySQL(t, mariaDBRole(t, config, admin, rights...))))
	})
	t.Run("an own table is well", func(t *testing.T) {
		config, admin := database(t)
		execute(t, admin, "CREATE TABLE orders (id BINARY(16) PRIMARY KEY) ENGINE = InnoDB")
		db := mariaDBRole(t, config, admin, append(mariaDBVerifier, "SELECT ON orders")...)
		ledger, err := mysql.OpenOwnTable(t.Context(), db, bridge.OwnTable{Table: "orders", Column: "id"})
		must(t, err)
		ledgertest.Well(t, inspectorOf(t, ledger))
		execute(t, admin, "ALTER TABLE orders ENGINE = MyISAM")
		ledgertest.Finds(t, inspectorOf(t, ledger), "ledger", inspect.Error, "InnoDB")
	})
	for name, c := range map[string]struct {
		do, undo   []string
		parameters map[string]string // of the connection
		lacks      string            // a right
		check      string
		level      inspect.Level
		says       string
	}{
		"a copy":            {do: []string{"UPDATE bridge_identity SET identity = UNHEX(REPLACE(UUID(), '-', ''))"}, check: "ledger", level: inspect.Error, says: "identity"},
		"relaxed commits":   {do: []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 2"}, undo: []string{"SET GLOBAL innodb_flush_log_at_trx_commit = 1"}, check: "durability", level: inspect.Error, says: "is 2"},
		"read-only":         {do: []string{"SET GLOBAL read_only = 1"}, undo: []string{"SET GLOBAL read_only = 0"}, check: "primary", level: inspect.Error, says: "read_only"},
		"relaxed log":       {do: []string{"SET GLOBAL sync_binlog = 0"}, undo: []string{"SET GLOBAL sync_binlog = 1"}, check: "binary log", level: inspect.Warning, says: "sync_binlog is 0"},
		"log of statements": {do: []string{"SET GLOBAL binlog_format = STATEMENT"}, undo: []string{"SET GLOBAL binlog_format = MIXED"}, check: "binary log", level: inspect.Error, says: "STATEMENT"},
		"few connections":   {do: []string{"SET GLOBAL max_connections = 15"}, undo: []string{"SET GLOBAL max_connections = 300"}, check: "connections left", level: inspect.Warning, says: "of 15"},
		"a login's few":     {do: []string{"ALTER USER $role WITH MAX_USER_CONNECTIONS 9"}, check: "connections left", level: inspect.Warning, says: "of 9"},
		"statement time":    {parameters: map[string]string{words.statementTime: words.tenSeconds}, check: "time-outs", level: inspect.Warning, says: words.statementTime + " is 10s"},
		"idle time-out":     {parameters: map[string]string{"wait_timeout": "20"}, check: "time-outs", level: inspect.Warning, says: "wait_timeout is 20s"},
		"MariaDB's default packets": {do: []string{"SET GLOBAL max_allowed_packet = 16777216"}, undo: []string{"SET GLOBAL max_allowed_packet = 23068672"},
			check: "size of a carried message", level: inspect.Warning, says: "three quarters of it, 12582912"},
		"others unseen":           {lacks: "PROCESS ON *.*", check: "holders of a row", level: inspect.Warning, says: "PROCESS"},
		"age unseen":              {lacks: "PROCESS ON *.*", check: "oldest open transaction", level: inspect.Unknown, says: "PROCESS"},
		"another engine":          {do: []string{"ALTER TABLE bridge_watermark ENGINE = MyISAM"}, check: "engine", level: inspect.Error, says: "bridge_watermark is MyISAM"},
		"no right to delete":      {lacks: "SELECT, DELETE ON bridge_ledger", do: []string{"GRANT SELECT ON bridge_ledger TO $role"}, check: "rights of a verifier", level: inspect.Error, says: "lacks DELETE ON bridge_ledger"},
		"no right to insert":      {lacks: "INSERT ON bridge_ledger", check: "rights of a verifier", level: inspect.Error, says: "lacks INSERT ON bridge_ledger"},
		"no right to stage again": {lacks: "UPDATE (stage_at, claimed_by) ON bridge_ledger", check: "rights to stage again", level: inspect.Error, says: "lacks UPDATE (stage_at, claimed_by) ON bridge_ledger: a carried message whose staged copy is lost"},
		"no right to sweep":       {lacks: "UPDATE ON bridge_watermark", check: "rights to sweep", level: inspect.Warning, says: "UPDATE ON bridge_watermark"},
		"orphans": {do: []string{"INSERT INTO bridge_ledger (id, recorded_at) VALUES ('1', UTC_TIMESTAMP() - INTERVAL 8 DAY), ('2', UTC_TIMESTAMP() - INTERVAL 9 DAY)"},
			check: "orphans", level: inspect.Warning, says: "days old: 2;"},
		// A session may have a clock of its own.
		"a clock somewhat wrong": {parameters: map[string]string{"timestamp": "UNIX_TIMESTAMP(SYSDATE()) + 30"}, check: "clock", level: inspect.Warning, says: "differs from"},
		"a wrong clock":          {parameters: map[string]string{"timestamp": "UNIX_TIMESTAMP(SYSDATE()) - 3600"}, check: "clock", level: inspect.Error, says: "-"},
	} {
		t.Run(name, func(t *testing.T) {
			config, admin := database(t)
			config = config.Clone()
			config.Params = c.parameters
			var rights []string
			for _, r := range mariaDBVerifier {
				if r != c.lacks {
					rights = append(rights, r)
				}
			}
			db := mariaDBRole(t, config, admin, rights...)
			t.Cleanup(func() {
				for _, statement := range c.undo {
					_, err := admin.ExecContext(context.Background(), statement)
					must(t, err)
				}
			})
			var role string
			must(t, db.QueryRowContext(t.Context(), "SELECT CURRENT_USER()").Scan(&role))
			role, _, _ = strings.Cut(role, "@")
			ledger := openMySQL(t, db)
			for _, statement := range c.do {
				executeAll(t, admin, strings.ReplaceAll(statement, "$role", role))
			}
			db.SetMaxIdleConns(0) // so that every session is new
			ledgertest.Finds(t, inspectorOf(t, ledger), c.check, c.level, c.says)
		})
	}
	t.Run("a receiver's server", func(t *testing.T) {
		_, admin := database(t)
		inbox := diagnoser(func(ctx context.Context) ([]inspect.Finding, error) { return mysql.DiagnoseInbox(ctx, admin) })
		ledgertest.Finds(t, inbox, "binary log", inspect.OK, "commits wait for it")
		execute(t, admin, "SET GLOBAL sync_binlog = 0")
		defer execute(t, admin, "SET GLOBAL sync_binlog = 1")
		ledgertest.Finds(t, inbox, "binary log", inspect.Warning, "another receiver saw its claim")
	})
	if words.watch == "" { // MySQL's variables belong to a plugin
		t.Run("semi-synchronous replication", func(t *testing.T) {
			_, admin := database(t)
			defer execute(t, admin, "SET GLOBAL rpl_semi_sync_master_enabled = OFF")
			execute(t, admin, "SET GLOBAL rpl_semi_sync_master_timeout = 1") // there is no replica
			execute(t, admin, "SET GLOBAL rpl_semi_sync_master_enabled = ON")
			ledgertest.Finds(t, inspectorOf(t, openMySQL(t, admin)), "semi-synchronous replication", inspect.Warning, "AFTER_COMMIT")
			execute(t, admin, "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC")
			ledgertest.Finds(t, inspectorOf(t, openMySQL(t, admin)), "semi-synchronous replication", inspect.OK, "AFTER_SYNC")
		})
	}
	t.Run("a transaction that has been open for long", func(t *testing.T) {
		config, admin := database(t)
		tx := begin(t, admin)
		must(t, openMySQL(t, admin).Record(t.Context(), bridge.SQL(tx), seam.Plain(newID())))
		config = config.Clone()
		config.Params = map[string]string{"timestamp": "UNIX_TIMESTAMP(SYSDATE()) + 7200"}
		ledgertest.Finds(t, inspectorOf(t, openMySQL(t, mariaDBRole(t, config, admin, mariaDBVerifier...))), "oldest open transaction", inspect.Warning, "2h")
	})
	t.Run("an idle holder shows its program and its last statement", func(t *testing.T) {
		config, admin := database(t)
		id := newID()
		tx := recorded(t, openMySQL(t, admin), id)
		_, err := tx.ExecContext(t.Context(), "SELECT 'the last one'")
		must(t, err)
		db := mariaDBRole(t, config, admin, append(mariaDBVerifier, "SELECT ON performance_schema.*")...)
		found := holders(t, openMySQL(t, db), id)
		if len(found) != 1 || found[0].Program != "shop" || found[0].Statement != "SELECT 'the last one'" || found[0].State != "Sleep" || found[0].Login != "root" {
			t.Errorf("the holders are %+v", found)
		}
		// A login without these rights sees nothing.
		db = mariaDBRole(t, config, admin, sweeperRights...)
		if found := holders(t, openMySQL(t, db), id); len(found) > 0 {
			t.Errorf("without PROCESS: %+v", found)
		}
		if found := opens(t, openMySQL(t, db)); len(found) > 0 {
			t.Errorf("without PROCESS: %+v", found)
		}
	})
	t.Run("a prepared transaction holds a message up", func(t *testing.T) {
		config, admin := database(t)
		id := newID()
		conn, err := admin.Conn(t.Context())
		must(t, err)
		for _, statement := range []string{"XA START 'left behind'", "INSERT INTO bridge_ledger (id) VALUES (UNHEX('" + strings.ReplaceAll(id.String(), "-", "") + "'))",
			"XA END 'left behind'", "XA PREPARE 'left behind'"} {
			_, err := conn.ExecContext(t.Context(), statement)
			must(t, err)
		}
		_ = conn.Raw(func(any) error { return sql.ErrConnDone })
		must(t, conn.Close())
		admin.SetMaxIdleConns(0) // the session ends
		t.Cleanup(func() {
			_, err := connectMariaDB(t, config).ExecContext(context.Background(), "XA ROLLBACK 'left behind'")
			must(t, err)
		})
		other := connectMariaDB(t, config)
		found := holders(t, openMySQL(t, other), id)
		if len(found) != 1 || found[0].Session != "0" || !strings.Contains(found[0].State, "XA RECOVER") || found[0].Since.IsZero() {
			t.Errorf("the holders are %+v", found)
		}
	})
	t.Run("a pool of one connection", func(t *testing.T) {
		_, admin := database(t)
		admin.SetMaxOpenConns(1)
		ledgertest.Finds(t, inspectorOf(t, openMySQL(t, admin)), "connection pool", inspect.Error, "pool allows 1 connection")
	})
}

type diagnoser func(context.Context) ([]inspect.Finding, error)

func (d diagnoser) Diagnose(ctx context.Context) ([]inspect.Finding, error) { return d(ctx) }
