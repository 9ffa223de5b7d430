package ledger_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/twoqueue/twoqueue/bridge/migrate"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// flavour holds the words in which MariaDB and MySQL differ.
type flavour struct {
	follow, apply, stopApplying string
	statementTime, tenSeconds   string // a variable that bounds statements, and its value
	sessionVariables            string // a table with the session's variables
	oddMode                     string // an sql_mode
	safeUpdates                 error  // the server's refusal of a join by key under sql_safe_updates, if it refuses
	watch                       string // right that Holders needs besides PROCESS, if any
}

func flavourOf(t *testing.T, db *sql.DB) flavour {
	t.Helper()
	if isMySQL(t, db) {
		return flavour{
			follow:           "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1, SOURCE_USER = 'nobody'",
			apply:            "START REPLICA SQL_THREAD",
			stopApplying:     "STOP REPLICA",
			statementTime:    "max_execution_time",
			tenSeconds:       "10000",
			sessionVariables: "performance_schema.session_variables",
			oddMode:          "'ANSI,NO_BACKSLASH_ESCAPES'",
			watch:            "SELECT ON performance_schema.*",
		}
	}
	return flavour{
		follow:           "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1, MASTER_USER = 'nobody'",
		apply:            "START SLAVE SQL_THREAD",
		stopApplying:     "STOP SLAVE",
		statementTime:    "max_statement_time",
		tenSeconds:       "10",
		sessionVariables: "information_schema.session_variables",
		oddMode:          "'ANSI,ORACLE,NO_BACKSLASH_ESCAPES'",
		safeUpdates:      &driver.MySQLError{Number: 1175},
	}
}

func isMySQL(t *testing.T, db *sql.DB) bool {
	t.Helper()
	var version string
	must(t, db.QueryRowContext(t.Context(), "SELECT version()").Scan(&version))
	return !strings.Contains(version, "MariaDB")
}

// mariaDB creates a database with a ledger, and connects to it.
func mariaDB(t *testing.T) (*driver.Config, *sql.DB) {
	t.Helper()
	config := mariaDBConfig(t, servertest.MariaDBDatabase(t))
	db := connectMariaDB(t, config)
	must(t, migrate.Ledger(t.Context(), db, migrate.MySQL))
	return config, db
}

// onServer creates a ledger on a private server.
func onServer(t *testing.T, server *servers.MariaDB) *sql.DB {
	t.Helper()
	execute(t, connectMariaDB(t, mariaDBConfig(t, server.DSN())), "CREATE DATABASE ledger")
	db := connectMariaDB(t, mariaDBConfig(t, server.DatabaseDSN("ledger")))
	must(t, migrate.Ledger(t.Context(), db, migrate.MySQL))
	return db
}

func mariaDBConfig(t *testing.T, dsn string) *driver.Config {
	t.Helper()
	config, err := driver.ParseDSN(dsn)
	must(t, err)
	return config
}

func connectMariaDB(t *testing.T, config *driver.Config) *sql.DB {
	t.Helper()
	connector, err := driver.NewConnector(config)
	must(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { must(t, db.Close()) })
	return db
}

// mariaDBRole creates a login with these rights, and connects with it.
func mariaDBRole(t *testing.T, config *driver.Config, admin *sql.DB, rights ...string) *sql.DB {
	t.Helper()
	as := config.Clone()
	as.User, as.Passwd = "role_"+newID().String()[24:], "secret"
	execute(t, admin, "CREATE USER "+as.User+" IDENTIFIED BY 'secret'")
	t.Cleanup(func() {
		_, err := admin.ExecContext(context.Background(), "DROP USER "+as.User)
		must(t, err)
	})
	for _, right := range rights {
		execute(t, admin, "GRANT "+right+" TO "+as.User)
	}
	return connectMariaDB(t, as)
}
