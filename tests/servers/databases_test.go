package servers_test

import (
	"database/sql"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

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
