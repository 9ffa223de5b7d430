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

// The database restarts between Open and Run, and the pool's idle connections do not notice. Each
// fails at its first use, with an error after which the driver may not repeat the statement.
func TestTheFirstSessionStartsOnAPoolOfBrokenConnections(t *testing.T) {
	t.Parallel()
	var valve *servertest.Valve
	onPostgres, onMariaDB := stage.Postgres, stage.MariaDB
	onPostgres.URL = func(t testing.TB) (through string) {
		valve, through = servertest.Through(t, servertest.PostgresDB(t))
		return through
	}
	onPostgres.Open = func(ctx context.Context, url string) (*sql.DB, driver.Ledger, error) {
		migrated, _, err := stage.Postgres.Open(ctx, url)
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
		// By default pgx pings a connection that was idle for a second. A connection may be idle
		// for less.
		db := stdlib.OpenDB(*config, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false }))
		ledger, err := postgres.Open(ctx, db)
		return db, ledger, err
	}
	onMariaDB.URL = func(t testing.TB) string {
		server := servertest.MariaDB(t).Addr()
		valve = servertest.NewValve(t, server)
		return strings.Replace(servertest.MariaDBDatabase(t), server, valve.Addr(), 1)
	}
	for _, kind := range []stage.Database{onPostgres, onMariaDB} {
		t.Run(kind.Name, func(t *testing.T) {
			s := stage.New(t, kind)
			idle := (*verifier.Options)(nil).Connections()
			s.DB.SetMaxIdleConns(idle)
			useAtOnce(t, s.DB, idle)
			valve.Forget() // each connection ends when data is sent over it
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
		})
	}
}
