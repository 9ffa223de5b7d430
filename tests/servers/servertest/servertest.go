// Package servertest gives tests the servers of package servers: one of each
// kind for a test binary, started when a test first asks for it, and in it a
// vhost or a database of its own for every test.
//
// A test binary that uses it calls Main from its TestMain. Where a server is
// not installed its tests are skipped, or fail if CI is "true".
//
// BRIDGE_TEST_AMQP_URL, BRIDGE_TEST_POSTGRES_URL and BRIDGE_TEST_MYSQL_URL
// (a DSN of go-sql-driver) name servers to use instead of private ones, for
// Vhost, PostgresDB and MariaDBDatabase.
package servertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/tests/servers"
)

const (
	amqpVariable     = "BRIDGE_TEST_AMQP_URL"
	postgresVariable = "BRIDGE_TEST_POSTGRES_URL"
	mysqlVariable    = "BRIDGE_TEST_MYSQL_URL"
)

// Main is Run, and exits. It is the last call of TestMain.
func Main(m *testing.M, ignored ...goleak.Option) { os.Exit(Run(m, ignored...)) }

// Run runs the tests, stops the shared servers, fails if goroutines are left
// over, and returns the exit code. It is for a TestMain that cleans up after it.
func Run(m *testing.M, ignored ...goleak.Option) int {
	code := m.Run()
	if err := errors.Join(rabbitMQ.stop(), postgres.stop(), mariaDB.stop()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code == 0 { // a failed test may well leave something running
		if err := goleak.Find(ignored...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// RabbitMQ returns the shared RabbitMQ, which has the management plugin. A
// test that kills or restarts it disturbs tests that run beside it; such a
// test starts its own.
func RabbitMQ(t testing.TB) *servers.RabbitMQ { return rabbitMQ.get(t) }

// Postgres returns the shared PostgreSQL. It does not wait for the disk.
func Postgres(t testing.TB) *servers.Postgres { return postgres.get(t) }

// MariaDB returns the shared MariaDB. It does not wait for the disk.
func MariaDB(t testing.TB) *servers.MariaDB { return mariaDB.get(t) }

// StartRabbitMQ starts a RabbitMQ for this test alone.
func StartRabbitMQ(t testing.TB, options *servers.RabbitMQOptions) *servers.RabbitMQ {
	return own(t, func(ctx context.Context) (*servers.RabbitMQ, error) { return servers.StartRabbitMQ(ctx, options) })
}

// StartCluster starts a RabbitMQ cluster of n nodes for this test alone.
func StartCluster(t testing.TB, n int, options *servers.RabbitMQOptions) *servers.Cluster {
	return own(t, func(ctx context.Context) (*servers.Cluster, error) { return servers.StartCluster(ctx, n, options) })
}

// StartPostgres starts a PostgreSQL for this test alone.
func StartPostgres(t testing.TB, options *servers.PostgresOptions) *servers.Postgres {
	return own(t, func(ctx context.Context) (*servers.Postgres, error) { return servers.StartPostgres(ctx, options) })
}

// StartStandby starts a hot standby of the primary for this test alone.
func StartStandby(t testing.TB, primary *servers.Postgres) *servers.Postgres {
	return own(t, func(ctx context.Context) (*servers.Postgres, error) { return servers.StartStandby(ctx, primary) })
}

// StartMariaDB starts a MariaDB for this test alone.
func StartMariaDB(t testing.TB, options *servers.MariaDBOptions) *servers.MariaDB {
	return own(t, func(ctx context.Context) (*servers.MariaDB, error) { return servers.StartMariaDB(ctx, options) })
}

// StartPgBouncer starts a PgBouncer before a PostgreSQL for this test alone.
func StartPgBouncer(t testing.TB, pg *servers.Postgres) *servers.PgBouncer {
	return own(t, func(ctx context.Context) (*servers.PgBouncer, error) { return servers.StartPgBouncer(ctx, pg) })
}

var (
	rabbitMQ = shared[*servers.RabbitMQ]{start: func(ctx context.Context) (*servers.RabbitMQ, error) {
		return servers.StartRabbitMQ(ctx, &servers.RabbitMQOptions{Plugins: []string{"rabbitmq_management"}})
	}}
	postgres = shared[*servers.Postgres]{start: func(ctx context.Context) (*servers.Postgres, error) {
		return servers.StartPostgres(ctx, &servers.PostgresOptions{Fast: true})
	}}
	mariaDB = shared[*servers.MariaDB]{start: func(ctx context.Context) (*servers.MariaDB, error) {
		return servers.StartMariaDB(ctx, &servers.MariaDBOptions{Fast: true})
	}}
)

type server interface {
	Kill()
	Stop() error
}

// shared is a server that the first test to ask for it starts.
type shared[S server] struct {
	start func(context.Context) (S, error)

	once    sync.Once
	started bool
	server  S
	err     error
}

func (s *shared[S]) get(t testing.TB) S {
	t.Helper()
	// Not the test's own context: the server outlives the test.
	s.once.Do(func() {
		s.server, s.err = s.start(context.Background())
		s.started = s.err == nil
	})
	require(t, s.err)
	return s.server
}

func (s *shared[S]) stop() error {
	if !s.started {
		return nil
	}
	s.server.Kill() // nobody needs its data: an orderly end takes RabbitMQ six seconds
	return s.server.Stop()
}

func own[S server](t testing.TB, start func(context.Context) (S, error)) S {
	t.Helper()
	started, err := start(t.Context())
	require(t, err)
	t.Cleanup(func() {
		if err := started.Stop(); err != nil {
			t.Error(err)
		}
	})
	return started
}

// require ends a test whose server could not be started.
func require(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, servers.ErrMissing) && os.Getenv("CI") != "true":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}
