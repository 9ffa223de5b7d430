package verifier_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// restarter is a private server.
type restarter interface {
	Kill()
	Restart(ctx context.Context) error
}

// The database restarts between Open and Run, and no idle connection of the pool has
// heard of it: each fails at its first use, by an error that the driver may not repeat.
func TestTheFirstSessionStartsOnAPoolOfBrokenConnections(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		server := servertest.StartPostgres(t, nil)
		v, through := servertest.Through(t, server.URL())
		kind := stage.Postgres
		kind.URL = func(testing.TB) string { return through }
		open := kind.Open
		kind.Open = func(ctx context.Context, url string) (*sql.DB, driver.Ledger, error) {
			migrated, _, err := open(ctx, url)
			if err != nil {
				return nil, nil, err
			}
			if err := migrated.Close(); err != nil {
				return nil, nil, err
			}
			config, err := pgx.ParseConfig(url)
			if err != nil {
				return nil, nil, err
			}
			// By default pgx asks a connection that was idle for a second; it may be unused for less.
			db := stdlib.OpenDB(*config, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false }))
			ledger, err := postgres.Open(ctx, db)
			return db, ledger, err
		}
		testBrokenPool(t, kind, v, server)
	})
	t.Run("mariadb", func(t *testing.T) {
		t.Parallel()
		server := servertest.StartMariaDB(t, nil)
		root, err := sql.Open("mysql", server.DSN())
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		if _, err := root.ExecContext(t.Context(), "CREATE DATABASE shop"); err != nil {
			t.Fatal(err)
		}
		v := servertest.NewValve(t, server.Addr())
		kind := stage.MariaDB
		kind.URL = func(testing.TB) string {
			return strings.Replace(server.DatabaseDSN("shop"), server.Addr(), v.Addr(), 1)
		}
		testBrokenPool(t, kind, v, server)
	})
}

func testBrokenPool(t *testing.T, kind stage.Database, valve *servertest.Valve, server restarter) {
	s := stage.New(t, kind)
	idle := (*verifier.Options)(nil).Connections()
	s.DB.SetMaxIdleConns(idle)
	useAtOnce(t, s.DB, idle)
	valve.Forget()
	server.Kill()
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := s.DB.Stats().Idle; n != idle {
		t.Fatalf("%d connections are idle, must be %d, all broken", n, idle)
	}
	v := s.Verify(verifier.Options{})
	if v.Stats().Sessions == 0 {
		v.Stop()
		t.FailNow()
	}
	queue := s.Queue("target", nil)
	ids := s.Commit(stage.To(queue, "after the restart"))
	s.Eventually("the message arrives", func() bool { return s.Depth(queue) == len(ids) })
}
