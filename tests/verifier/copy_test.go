package verifier_test

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// A second primary has the same ledger: a copy of the database, or an old primary that has come back
// after a failover. It passes the proof, and lacks the rows committed since.
func TestACopyOfTheDatabase(t *testing.T) {
	t.Parallel()
	primary := servertest.StartPostgres(t, nil)
	kind := stage.Postgres
	kind.URL = func(testing.TB) string { return primary.URL() }
	stage.New(t, kind) // makes the ledger
	other := servertest.StartStandby(t, primary, nil)
	if err := other.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Run("an outcome of another server is not believed", func(t *testing.T) { testOutcomeOfAnother(t, stage.New(t, kind), primary, other) })
	t.Run("a verifier of a copy drops nothing", func(t *testing.T) { testVerifierOfACopy(t, stage.New(t, kind), other) })
	t.Run("verifiers of two copies lose no carried message", func(t *testing.T) { testVerifiersOfTwoCopies(t, stage.New(t, kind), other) })
}

// through connects the stage's verifiers to the database through a valve.
func through(t *testing.T, s *stage.Stage) *servertest.Valve {
	t.Helper()
	valve, address := servertest.Through(t, s.DatabaseURL)
	_, s.Ledger = openAt(t, s, address)
	return valve
}

// openAt opens the ledger at an address.
func openAt(t *testing.T, s *stage.Stage, address string) (*sql.DB, driver.Ledger) {
	t.Helper()
	db, ledger, err := s.Kind.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db, ledger
}

// The pool of a running verifier opens connections to another primary with the same identity.
func testOutcomeOfAnother(t *testing.T, s *stage.Stage, primary, other *servers.Postgres) {
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

// The copy's verifier reads the original's staging queue.
func testVerifierOfACopy(t *testing.T, s *stage.Stage, other *servers.Postgres) {
	s.Strict = true
	target := s.Queue("target", nil)
	const most = 50
	for i := range most {
		s.Commit(stage.To(target, fmt.Sprint(i)))
	}
	original := s.Ledger
	_, s.Ledger = openAt(t, s, other.URL())
	v := s.Verify(verifier.Options{})
	s.Eventually("all look rolled back, or one is dropped", func() bool { return v.State().Waiting.Evidence == most || v.Stats().Dropped > 0 })
	if state := v.State(); state.Waiting.EvidenceSince.IsZero() || !state.Evidence.IsZero() {
		t.Errorf("the state says %+v", state)
	}
	v.Stop()
	if n := v.Stats().Dropped; n > 0 {
		t.Fatalf("the copy's verifier has dropped %d committed messages", n)
	}
	s.Ledger = original
	s.Verify(verifier.Options{})
	s.Receive(target, most)
}

// A verifier of a copy takes part in staging again: it sends markers, and receives markers of the
// original's verifier. It may stage messages of copied rows again, and loses nothing.
func testVerifiersOfTwoCopies(t *testing.T, s *stage.Stage, other *servers.Postgres) {
	s.Strict = true
	target := s.Queue("target", nil)
	copied := lose(t, s, false, some(target, 10)...)
	db, ledger := openAt(t, s, other.URL())
	if n := copyRows(t, s.DB, db); n != len(copied) {
		t.Fatalf("the copy has %d rows", n)
	}
	want := lose(t, s, false, some(target, 10)...) // only the original has these rows
	maps.Copy(want, copied)

	usual := s.Ledger
	v := s.Verify(verifier.Options{})
	s.Ledger = ledger
	c := s.Verify(verifier.Options{})
	s.Ledger = usual
	seen := map[string]bool{}
	receive := func() {
		t.Helper()
		for len(seen) < len(want) {
			seen[s.Receive(target, 1)[0].MessageId] = true
		}
	}
	receive()
	s.Eventually("the copy's verifier withholds messages that the original's forwards", func() bool {
		add(want, s.Commit(some(target, 1)...)...)
		return v.Stats().Forwarded > 0 && c.State().Waiting.Evidence > 0
	})
	if n, state := c.Stats().Dropped, c.State(); n > 0 || !state.Evidence.IsZero() {
		t.Errorf("the copy's verifier has dropped %d messages; its state is %+v", n, state)
	}
	c.Stop()
	receive()
	s.Eventually("all rows of the original are gone", func() bool { return s.Rows() == 0 })
	for id := range seen {
		if !want[id] {
			t.Errorf("message %s was not committed", id)
		}
	}
}

// copyRows copies the ledger's rows to another database, and returns their number.
func copyRows(t *testing.T, from, to *sql.DB) (n int) {
	t.Helper()
	rows, err := from.QueryContext(t.Context(), `SELECT id::text, recorded_at, message, stage_at FROM bridge_ledger`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for ; rows.Next(); n++ {
		var id string
		var recorded, stage time.Time
		var message []byte
		if err := rows.Scan(&id, &recorded, &message, &stage); err != nil {
			t.Fatal(err)
		}
		if _, err := to.ExecContext(t.Context(), `INSERT INTO bridge_ledger (id, recorded_at, message, stage_at) VALUES ($1::text::uuid, $2, $3, $4) ON CONFLICT DO NOTHING`,
			id, recorded, message, stage); err != nil {
			t.Fatal(err)
		}
	}
	return n
}
