package servers_test

import (
	"database/sql"
	"errors"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

func TestPostgresKeepsCommitsOverKill(t *testing.T) {
	leavesNothing(t)
	server := servertest.StartPostgres(t, nil)
	db := openDB(t, "pgx", server.URL())
	mustExec(t, db, "CREATE TABLE kept (id int)")
	mustExec(t, db, "INSERT INTO kept VALUES (1)")
	open := begin(t, db)
	mustExec(t, open, "INSERT INTO kept VALUES (2)")

	server.Kill()
	if err := db.PingContext(t.Context()); err == nil {
		t.Fatal("a killed server answered")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, openDB(t, "pgx", server.URL())); n != 1 {
		t.Fatalf("after the kill the table holds %d rows", n)
	}
}

func TestMariaDBKeepsCommitsOverKill(t *testing.T) {
	leavesNothing(t)
	server := servertest.StartMariaDB(t, &servers.MariaDBOptions{Config: []string{"innodb_lock_wait_timeout=7"}})
	mustExec(t, openDB(t, "mysql", server.DSN()), "CREATE DATABASE test")
	db := openDB(t, "mysql", server.DatabaseDSN("test"))
	mustExec(t, db, "CREATE TABLE kept (id int)")
	mustExec(t, db, "INSERT INTO kept VALUES (1)")
	open := begin(t, db)
	mustExec(t, open, "INSERT INTO kept VALUES (2)")
	var timeout int
	if err := db.QueryRow("SELECT @@innodb_lock_wait_timeout").Scan(&timeout); err != nil || timeout != 7 {
		t.Fatalf("the option given is %d, %v", timeout, err)
	}

	server.Kill()
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, openDB(t, "mysql", server.DatabaseDSN("test"))); n != 1 {
		t.Fatalf("after the kill the table holds %d rows", n)
	}
}

func TestStandbyTakesNoWrites(t *testing.T) {
	leavesNothing(t)
	primary := servertest.StartPostgres(t, &servers.PostgresOptions{Fast: true})
	mustExec(t, openDB(t, "pgx", primary.URL()), "CREATE TABLE kept (id int)")
	standby := openDB(t, "pgx", servertest.StartStandby(t, primary).URL())

	if n := count(t, standby); n != 0 {
		t.Fatalf("the standby's table holds %d rows", n)
	}
	_, err := standby.Exec("INSERT INTO kept VALUES (1)")
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) || refusal.Code != "25006" { // read_only_sql_transaction
		t.Fatalf("the standby answered a write with %v", err)
	}
}

func TestPgBouncerPoolsByTransaction(t *testing.T) {
	leavesNothing(t)
	server := servertest.StartPostgres(t, &servers.PostgresOptions{Fast: true})
	pooled := openDB(t, "pgx", servertest.StartPgBouncer(t, server.PostgresAddress).URL()+"&default_query_exec_mode=exec")

	// Two client connections share one of the server's, one transaction after
	// the other.
	var pids [2]int
	for i := range pids {
		conn, err := pooled.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.QueryRowContext(t.Context(), "SELECT pg_backend_pid()").Scan(&pids[i]); err != nil {
			t.Fatal(err)
		}
	}
	if pids[0] != pids[1] {
		t.Fatalf("two connections are served by %d and %d", pids[0], pids[1])
	}
}

func openDB(t *testing.T, driver, address string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // the server may be gone
	return db
}

func begin(t *testing.T, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func mustExec(t *testing.T, on interface {
	Exec(string, ...any) (sql.Result, error)
}, statement string) {
	t.Helper()
	if _, err := on.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRow("SELECT count(*) FROM kept").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
