package sender_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// killableDatabases are the databases whose connections a test can end: with a query for a
// connection's session, a statement that ends a session, and a query that counts the sessions with
// its ID.
var killableDatabases = []struct {
	stage.Database
	session, kill, count string
}{
	{stage.Postgres, "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%s)", "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"},
	{stage.MariaDB, "SELECT connection_id()", "KILL %s", "SELECT count(*) FROM information_schema.processlist WHERE id = %s"},
	{stage.SQLServer, "SELECT @@SPID", "KILL %s", "SELECT count(*) FROM sys.dm_exec_sessions WHERE session_id = %s"},
}

// A restart of the server, a firewall, or an administrator ends idle connections. The pool
// notices when it uses such a connection.
func TestPooledConnectionsThatWereLostCostNoTransactionAndNoLookup(t *testing.T) {
	for _, kind := range killableDatabases {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, kind.Database)
			pool := 3
			loseAll := func() {
				t.Helper()
				admin, _, err := kind.Open(t.Context(), s.DatabaseURL)
				if err != nil {
					t.Fatal(err)
				}
				defer admin.Close()
				s.DB.SetMaxIdleConns(-1) // closes the lost ones
				s.DB.SetMaxIdleConns(pool)
				var conns []*sql.Conn
				var sessions []string
				for range pool {
					conn, err := s.DB.Conn(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					var session string
					if err := conn.QueryRowContext(t.Context(), kind.session).Scan(&session); err != nil {
						t.Fatal(err)
					}
					conns, sessions = append(conns, conn), append(sessions, session)
				}
				for i, conn := range conns {
					if err := conn.Close(); err != nil {
						t.Fatal(err)
					}
					if _, err := admin.ExecContext(t.Context(), fmt.Sprintf(kind.kill, sessions[i])); err != nil {
						t.Fatal(err)
					}
					s.Eventually("the connection has ended", func() bool {
						var n int
						if err := admin.QueryRowContext(t.Context(), fmt.Sprintf(kind.count, sessions[i])).Scan(&n); err != nil {
							t.Fatal(err)
						}
						return n == 0
					})
				}
			}

			loseAll()
			if err := s.NewSender(sender.Options{}).InTx(t.Context(), s.DB, nil, func(*sender.Tx) error { return nil }); err != nil {
				t.Errorf("transaction: %v", err)
			}
			loseAll()
			if _, _, err := s.Ledger.Committed(t.Context(), []uuid.UUID{uuid.New()}); err != nil {
				t.Errorf("look up: %v", err)
			}
			loseAll()
			if _, _, err := s.Ledger.Settle(t.Context(), uuid.New(), time.Minute); err != nil {
				t.Errorf("settle: %v", err)
			}
		})
	}
}
