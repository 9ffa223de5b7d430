package servertest

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	_ "github.com/microsoft/go-mssqldb" // driver

	"github.com/twoqueue/twoqueue/tests/tds"
)

// BRIDGE_TEST_SQLSERVER_URL names a real SQL Server, as sqlserver://. Its login must
// be allowed to create databases, to see the sessions and to end them.
const sqlServerVariable = "BRIDGE_TEST_SQLSERVER_URL"

// RealSQLServer tells whether there is one.
func RealSQLServer() bool { return os.Getenv(sqlServerVariable) != "" }

// SQLServer returns the address of a real SQL Server if there is one, and else that
// of a stand-in with these switches, for this test alone.
func SQLServer(t testing.TB, options *tds.Options) string {
	t.Helper()
	if RealSQLServer() {
		return os.Getenv(sqlServerVariable)
	}
	return SQLServerStandIn(t, options).URL("master")
}

// SQLServerStandIn starts a stand-in, for what no real server does on demand.
func SQLServerStandIn(t testing.TB, options *tds.Options) *tds.Server {
	t.Helper()
	s, err := tds.Start(options)
	require(t, err)
	t.Cleanup(s.Close)
	return s
}

// SQLServerDB makes a database on a server, with READ_COMMITTED_SNAPSHOT or without,
// and returns its address. It is dropped when t ends.
func SQLServerDB(t testing.TB, server string, snapshot bool) string {
	t.Helper()
	admin, err := sql.Open("sqlserver", server)
	require(t, err)
	t.Cleanup(func() { require(t, admin.Close()) })
	run := func(statement string) {
		t.Helper()
		// Not the test's context: it has ended when the database is dropped.
		_, err := admin.ExecContext(context.Background(), statement)
		require(t, err)
	}
	name := "bridge_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	run("CREATE DATABASE " + name)
	t.Cleanup(func() { run("DROP DATABASE " + name) })
	if snapshot {
		run("ALTER DATABASE " + name + " SET READ_COMMITTED_SNAPSHOT ON")
	} else {
		run("ALTER DATABASE " + name + " SET READ_COMMITTED_SNAPSHOT OFF")
	}
	run("ALTER DATABASE " + name + " SET ALLOW_SNAPSHOT_ISOLATION ON")
	address, err := url.Parse(server)
	require(t, err)
	query := address.Query()
	query.Set("database", name)
	address.RawQuery = query.Encode()
	return address.String()
}
