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

// BRIDGE_TEST_SQLSERVER_URL names a real SQL Server, as sqlserver://. Its login must have the
// rights to create databases, to see sessions and to end them.
const sqlServerVariable = "BRIDGE_TEST_SQLSERVER_URL"

// RealSQLServer reports whether a real SQL Server is given.
func RealSQLServer() bool { return os.Getenv(sqlServerVariable) != "" }

// SQLServer returns the address of the real SQL Server if one is given, and otherwise of a stand-in
// with these options, for this test alone.
func SQLServer(t testing.TB, options *tds.Options) string {
	t.Helper()
	if RealSQLServer() {
		return os.Getenv(sqlServerVariable)
	}
	return SQLServerStandIn(t, options).URL("master")
}

// SQLServerStandIn starts a stand-in, for behaviour that no real server shows on demand.
func SQLServerStandIn(t testing.TB, options *tds.Options) *tds.Server {
	t.Helper()
	s, err := tds.Start(options)
	require(t, err)
	t.Cleanup(s.Close)
	return s
}

// SQLServerDB creates a database on a server, with READ_COMMITTED_SNAPSHOT or without, and returns
// its address. The database is dropped when t ends.
func SQLServerDB(t testing.TB, server string, snapshot bool) string {
	t.Helper()
	admin, err := sql.Open("sqlserver", server)
	require(t, err)
	t.Cleanup(func() { require(t, admin.Close()) })
	run := func(statement string) {
		t.Helper()
		// The test's context has ended when the database is dropped.
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
