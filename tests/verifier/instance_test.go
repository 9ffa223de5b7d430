package verifier_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// twoPrimaries returns a stage on a PostgreSQL of its own, and a second primary with the same
// ledger, as a copy is or a primary that comes back after a failover.
func twoPrimaries(t *testing.T) (s *stage.Stage, primary, other *servers.Postgres) {
	t.Helper()
	primary = servertest.StartPostgres(t, nil)
	kind := stage.Postgres
	kind.URL = func(testing.TB) string { return primary.URL() }
	s = stage.New(t, kind)
	other = servertest.StartStandby(t, primary, nil)
	if err := other.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, primary, other
}

// through connects the stage's verifiers to the database through a valve.
func through(t *testing.T, s *stage.Stage) *servertest.Valve {
	t.Helper()
	valve, address := servertest.Through(t, s.DatabaseURL)
	db, ledger, err := s.Kind.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s.Ledger = ledger
	return valve
}

// The pool of a running verifier opens connections to another primary with the same identity.
func TestAnOutcomeOfAnotherServerIsNotBelieved(t *testing.T) {
	t.Parallel()
	s, primary, other := twoPrimaries(t)
	target := s.Queue("target", nil)
	valve := through(t, s)
	var a recordingObserver
	v := s.Verify(verifier.Options{Observer: &a})
	s.Commit(stage.To(target, "before"))
	s.Receive(target, 1)

	valve.Lead(primary.Addr(), other.Addr()) // open connections stay open
	const most = 40
	var open []*sql.Tx
	for i := range most { // each makes a lookup wait, on a connection of its own
		tx, _ := s.Begin(stage.To(target, fmt.Sprint(i)))
		open = append(open, tx)
	}
	s.Eventually("the session ends, or a message is dropped", func() bool { return len(a.ends()) > 0 || v.Stats().Dropped > 0 })
	for _, tx := range open {
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	valve.Lead(primary.Addr())
	if n := v.Stats().Dropped; n > 0 {
		t.Fatalf("%d messages of open transactions are dropped", n)
	}
	s.Receive(target, most)
	if n := v.Stats().Dropped; n > 0 {
		t.Errorf("%d committed messages are dropped", n)
	}
	err := a.ends()[0]
	if !errors.Is(err, bridge.ErrOtherInstance) {
		t.Fatalf("the session has ended with %v", err)
	}
	for _, server := range []*servers.Postgres{primary, other} {
		if name := fmt.Sprint("port ", server.Port); !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not name the server on %s: %v", name, err)
		}
	}
}
