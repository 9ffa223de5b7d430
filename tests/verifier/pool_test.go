package verifier_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/twoqueue/twoqueue/bridge/pgxbridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// The server refuses more than a few connections. The verifier goes on with these, in one
// session: beside many open transactions, committed messages are forwarded, each once.
func TestAServerThatOpensNoFurtherConnectionEndsNoSession(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	limited := newLimitedRole(t, s)
	limited.limit(t, 3)
	const open, messages = 12, 100
	want := map[string]bool{}
	var held []*sql.Tx
	for range open {
		tx, ids := s.Begin(stage.To(queue, "open"))
		held = append(held, tx)
		add(want, ids...)
	}
	v := s.Verify(verifier.Options{Logger: slog.New(slog.NewTextHandler(&limited.log, nil))})
	s.Eventually("the server refuses a connection", func() bool { return len(limited.log.With("refuses further connections")) > 0 })
	for range 3 {
		expectAll(t, s, queue, goodBatch(s, queue, messages))
	}
	for _, tx := range held {
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	expectAll(t, s, queue, want)
	s.Eventually("all rows are deleted", func() bool { return s.Rows() == 0 })
	if n := v.Stats(); n.Sessions != 1 || n.Forwarded != 3*messages+open {
		t.Errorf("stats %+v", n)
	}
}

// A verifier that starts meanwhile waits.
func TestAVerifierWaitsForItsConnections(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	limited := newLimitedRole(t, s)
	limited.limit(t, 0)
	v, err := verifier.New(s.Ledger, s.Broker, &verifier.Options{Topology: s.Topology, Logger: stage.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	s.Eventually("it has failed to start, or has given up", func() bool { return v.State().Err != nil || len(ended) > 0 })
	limited.limit(t, -1)
	expectAll(t, s, queue, goodBatch(s, queue, 10))
	cancel()
	if err := servertest.Next(t, "the verifier ends", ended); err != nil {
		t.Error(err)
	}
}

// limitedRole is a role whose connections the server limits. The stage's verifiers use it, and
// its senders do not.
type limitedRole struct {
	s    *stage.Stage
	role string
	db   *sql.DB
	log  servertest.Log
}

func newLimitedRole(t *testing.T, s *stage.Stage) *limitedRole {
	t.Helper()
	l := &limitedRole{s: s}
	var address string
	l.role, address = servertest.PostgresRole(t, s.DatabaseURL, "ALL ON ALL TABLES IN SCHEMA public")
	var err error
	if l.db, err = sql.Open("pgx", address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.db.Close() })
	if s.Ledger, err = postgres.Open(t.Context(), l.db); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *limitedRole) execute(t *testing.T, statement string) {
	t.Helper()
	if _, err := l.s.DB.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// limit limits the connections to n; -1 removes the limit. The pool drops its idle connections.
func (l *limitedRole) limit(t *testing.T, n int) {
	t.Helper()
	l.execute(t, fmt.Sprintf("ALTER ROLE %s CONNECTION LIMIT %d", l.role, n))
	l.db.SetMaxIdleConns(-1)
	l.db.SetMaxIdleConns((*verifier.Options)(nil).Connections())
}

// database/sql cannot see the limit of a pgxpool.
func TestAPgxPoolThatIsTooSmallIsRefused(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	need := (*verifier.Options)(nil).Connections()
	for most, refused := range map[int]bool{1: true, 4: true, need: false} {
		config, err := pgxpool.ParseConfig(s.DatabaseURL)
		if err != nil {
			t.Fatal(err)
		}
		config.MaxConns = int32(most)
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		ledger, err := pgxbridge.Open(t.Context(), pool)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ledger.DB().Close() })
		_, err = verifier.New(ledger, s.Broker, &verifier.Options{Topology: s.Topology})
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), fmt.Sprint(most)) {
			t.Errorf("a pool of %d connections: %v", most, err)
		}
	}
}
