// Package servertest gives tests the servers of package servers: one of each kind, with a vhost or
// a database for every test. Binaries that package together runs share the servers. Any other
// binary starts its own when a test first needs one.
//
// The TestMain of a test binary that uses the package calls Main. If a server is not installed, its
// tests are skipped, or fail if CI is "true".
//
// BRIDGE_TEST_AMQP_URL, BRIDGE_TEST_POSTGRES_URL and BRIDGE_TEST_MYSQL_URL (a DSN of go-sql-driver)
// name servers to use in place of private ones, for Vhost, PostgresDB and MariaDBDatabase.
package servertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/compose/servers"
)

const (
	amqpVariable     = "BRIDGE_TEST_AMQP_URL"
	postgresVariable = "BRIDGE_TEST_POSTGRES_URL"
	mysqlVariable    = "BRIDGE_TEST_MYSQL_URL"
)

// Main calls Run and exits. It is the last call of TestMain.
func Main(m *testing.M, ignored ...goleak.Option) { os.Exit(Run(m, ignored...)) }

// Run runs the tests, stops the shared servers, fails if goroutines remain, and returns the exit
// code. It is for a TestMain that cleans up after it.
func Run(m *testing.M, ignored ...goleak.Option) int {
	code := m.Run()
	if err := errors.Join(rabbitMQ.stop(), postgres.stop(), mariaDB.stop()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code == 0 { // a failed test may leave goroutines
		if err := goleak.Find(ignored...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// RabbitMQ returns the shared RabbitMQ, which has the management plugin and metrics. Other packages
// may use it at the same time: a test that kills it, limits it, sets an alarm, or inspects more
// than its own vhost starts its own server.
func RabbitMQ(t testing.TB) servers.RabbitMQAddress { return rabbitMQ.get(t) }

// Postgres returns the shared PostgreSQL, which other packages may use too. It does not wait for
// the disk.
func Postgres(t testing.TB) servers.PostgresAddress { return postgres.get(t) }

// MariaDB returns the shared MariaDB, which other packages may use too. It does not wait for the
// disk. On a machine that has only MySQL it is a MySQL.
func MariaDB(t testing.TB) servers.MariaDBAddress { return mariaDB.get(t) }

// OwnMariaDB makes this binary start its own MariaDB, for tests that inspect the locks of the whole
// server. Call it before Main.
func OwnMariaDB() { mariaDB.alone = true }

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
func StartStandby(t testing.TB, primary *servers.Postgres, options *servers.PostgresOptions) *servers.Postgres {
	return own(t, func(ctx context.Context) (*servers.Postgres, error) {
		return servers.StartStandby(ctx, primary, options)
	})
}

// StartMariaDB starts a MariaDB for this test alone.
func StartMariaDB(t testing.TB, options *servers.MariaDBOptions) *servers.MariaDB {
	return own(t, func(ctx context.Context) (*servers.MariaDB, error) { return servers.StartMariaDB(ctx, options) })
}

// StartReplica starts a replica of the primary for this test alone.
func StartReplica(t testing.TB, primary *servers.MariaDB, options *servers.MariaDBOptions) *servers.MariaDB {
	return own(t, func(ctx context.Context) (*servers.MariaDB, error) {
		return servers.StartReplica(ctx, primary, options)
	})
}

// StartPgBouncer starts a PgBouncer in front of a PostgreSQL for this test alone.
func StartPgBouncer(t testing.TB, pg servers.PostgresAddress) *servers.PgBouncer {
	return own(t, func(ctx context.Context) (*servers.PgBouncer, error) { return servers.StartPgBouncer(ctx, pg) })
}

var (
	rabbitMQ = shared[*servers.RabbitMQ, servers.RabbitMQAddress]{
		given:   func(s servers.Shared) *servers.RabbitMQAddress { return s.RabbitMQ },
		start:   servers.StartSharedRabbitMQ,
		address: func(s *servers.RabbitMQ) servers.RabbitMQAddress { return s.RabbitMQAddress },
	}
	postgres = shared[*servers.Postgres, servers.PostgresAddress]{
		given:   func(s servers.Shared) *servers.PostgresAddress { return s.Postgres },
		start:   servers.StartSharedPostgres,
		address: func(s *servers.Postgres) servers.PostgresAddress { return s.PostgresAddress },
	}
	mariaDB = shared[*servers.MariaDB, servers.MariaDBAddress]{
		given:   func(s servers.Shared) *servers.MariaDBAddress { return s.MariaDB },
		start:   servers.StartSharedMariaDB,
		address: func(s *servers.MariaDB) servers.MariaDBAddress { return s.MariaDBAddress },
	}
)

type server interface {
	Kill()
	Stop() error
}

// shared is a server that this run was given, or that the first test to need it starts.
type shared[S server, A any] struct {
	given   func(servers.Shared) *A
	start   func(context.Context) (S, error)
	address func(S) A
	alone   bool // never the given one

	once    sync.Once
	started bool
	server  S
	at      A
	err     error
}

func (s *shared[S, A]) get(t testing.TB) A {
	t.Helper()
	s.once.Do(s.find)
	require(t, s.err)
	return s.at
}

func (s *shared[S, A]) find() {
	var all servers.Shared
	if all, s.err = servers.FindShared(); s.err != nil {
		return
	}
	if given := s.given(all); given != nil && !s.alone {
		s.at = *given
		return
	}
	// The test's context would end before the server.
	if s.server, s.err = s.start(context.Background()); s.err == nil {
		s.started, s.at = true, s.address(s.server)
	}
}

func (s *shared[S, A]) stop() error {
	if !s.started {
		return nil
	}
	s.server.Kill() // its data are no longer needed: an orderly end takes RabbitMQ six seconds
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

// require skips or fails a test whose server could not be started.
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
