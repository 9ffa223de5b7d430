package verifier_test

import (
	"database/sql"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// A copy of the database, or an old primary that has come back, passes the proof and lacks the
// rows committed since. Its verifier reads the original's staging queue.
func TestAVerifierOfACopyDropsNothing(t *testing.T) {
	t.Parallel()
	s, _, other := twoPrimaries(t)
	s.Strict = true
	target := s.Queue("target", nil)
	const most = 50
	for i := range most {
		s.Commit(stage.To(target, fmt.Sprint(i)))
	}
	original := s.Ledger
	db, ledger, err := s.Kind.Open(t.Context(), other.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s.Ledger = ledger
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
func TestVerifiersOfTwoCopiesLoseNoCarriedMessage(t *testing.T) {
	t.Parallel()
	s, _, other := twoPrimaries(t)
	s.Strict = true
	target := s.Queue("target", nil)
	copied := lose(t, s, false, some(target, 10)...)
	db, ledger, err := s.Kind.Open(t.Context(), other.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
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

// A copy has only older rows: their messages are forwarded, and are no evidence.
func TestARowFromBeforeTheSessionIsNoEvidence(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	s.Strict = true
	target := s.Queue("target", nil)
	s.Commit(stage.To(target, "before"))
	s.RollBack(stage.To(target, "rolled back"))
	v := s.Verify(verifier.Options{})
	s.Receive(target, 1)
	expectWaitingForEvidence(t, s, v, 1)
	s.Commit(stage.To(target, "since"))
	s.Receive(target, 1)
	expectDropped(t, s, v, 1)
}

// A copy of the database has the original's carried rows and stages their messages too.
func TestAMessageStagedAgainIsNoEvidence(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	s.Strict = true
	target := s.Queue("target", nil)
	s.RollBack(stage.To(target, "rolled back"))
	v := s.Verify(verifier.Options{})
	expectWaitingForEvidence(t, s, v, 1)
	s.CommitCarried(stage.To(target, "carried"))
	s.Receive(target, 1)
	expectWaitingForEvidence(t, s, v, 1)
	s.Commit(stage.To(target, "staged"))
	s.Receive(target, 1)
	expectDropped(t, s, v, 1)
}

// More messages look rolled back than a verifier may hold. They circulate through the waiting
// queue, and a stop of the verifier loses none.
func TestManyMessagesWaitForEvidence(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	s.Strict = true
	target := s.Queue("target", nil)
	const most = 100
	for i := range most {
		s.RollBack(stage.To(target, fmt.Sprint(i)))
	}
	options := verifier.Options{Prefetch: 40, Patience: 50 * time.Millisecond}
	v := s.Verify(options)
	s.Eventually("most are set aside", func() bool { return v.Stats().SetAside >= most-20 })
	v.Stop()
	if n := v.Stats().Dropped; n > 0 {
		t.Fatalf("%d are dropped without evidence", n)
	}
	v = s.Verify(options)
	s.Eventually("some wait for evidence", func() bool { return v.State().Waiting.Evidence > 0 })
	s.Commit(stage.To(target, "committed"))
	s.Receive(target, 1)
	expectDropped(t, s, v, most)
}

// A message with an order key that looks rolled back holds its key. A message behind it, recorded
// after the session began, is the evidence.
func TestAnOrderedMessageWaitsForEvidence(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, bridge.Topology{OrderedShards: 1})
	s.Strict = true
	target := s.Queue("target", nil)
	keyed := func(body string) bridge.Message {
		m := stage.To(target, body)
		m.OrderKey = "key"
		return m
	}
	s.RollBack(keyed("rolled back"))
	s.Commit(keyed("before"))
	v := s.Verify(verifier.Options{})
	expectWaitingForEvidence(t, s, v, 1)
	if n := s.Depth(target); n > 0 {
		t.Errorf("%d messages have overtaken", n)
	}
	s.Commit(keyed("since"))
	for i, d := range s.Receive(target, 2) {
		if want := []string{"before", "since"}[i]; string(d.Body) != want {
			t.Errorf("%q comes where %q must come", d.Body, want)
		}
	}
	expectDropped(t, s, v, 1)
}

// expectWaitingForEvidence waits until this number of messages waits for evidence, and fails the test if
// one is dropped.
func expectWaitingForEvidence(t *testing.T, s *stage.Stage, v *stage.Running, messages int) {
	t.Helper()
	s.Eventually("messages wait for evidence, or are dropped", func() bool { return v.State().Waiting.Evidence == messages || v.Stats().Dropped > 0 })
	if n := v.Stats().Dropped; n > 0 {
		t.Fatalf("%d messages are dropped without evidence", n)
	}
	if state := v.State(); state.Waiting.EvidenceSince.IsZero() || !state.Evidence.IsZero() {
		t.Errorf("the state says %+v", state)
	}
}

// expectDropped waits until this number of messages is dropped.
func expectDropped(t *testing.T, s *stage.Stage, v *stage.Running, messages int64) {
	t.Helper()
	s.Eventually("messages are dropped", func() bool { return v.Stats().Dropped == messages })
	if state := v.State(); !state.Waiting.EvidenceSince.IsZero() || state.Evidence.IsZero() || state.Waiting.Evidence > 0 {
		t.Errorf("the state says %+v", state)
	}
}
