package verifier_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func some(queue string, n int) []bridge.Message {
	messages := make([]bridge.Message, n)
	for i := range messages {
		messages[i] = stage.To(queue, fmt.Sprint(i))
	}
	return messages
}

// A message whose row the sweep has deleted wrongly is not dropped. A younger message without a
// row is.
func TestAnAbsentMessageOlderThanASweepIsNotDropped(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	const old = 3 * time.Hour
	ledger := s.Ledger.Identity()
	// Its row was committed hours ago. Its message has been in the queue since, unseen.
	late := named(queue, "committed hours ago")
	if err := recorded(t, s, late).Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DB.ExecContext(t.Context(), `UPDATE bridge_ledger SET recorded_at = now() - interval '3 hours'`); err != nil {
		t.Fatal(err)
	}
	swept, err := s.Ledger.Sweep(t.Context(), 2*time.Hour, 10)
	if err != nil || len(swept) != 1 || swept[0].ID != late.ID {
		t.Fatalf("swept %v (%v)", swept, err)
	}
	stagedAt := func(m bridge.Message, at time.Time) {
		staged, err := wire.Encode(m, ledger)
		if err != nil {
			t.Fatal(err)
		}
		if !at.IsZero() {
			staged.Headers[wire.HeaderStagedAt] = at.UnixMilli()
		}
		publish(t, s, staged)
	}
	unknown := named(queue, "no time")
	stagedAt(late, time.Now().Add(-old))
	stagedAt(unknown, time.Time{})
	stagedAt(named(queue, "rolled back a while ago"), time.Now().Add(-time.Hour))
	stagedAt(named(queue, "rolled back just now"), time.Now())
	v := s.Verify(verifier.Options{})
	s.Evidence()
	dead := map[string]bool{}
	for _, d := range s.Receive(s.Topology.DeadQueue(), 2) {
		if d.Headers[wire.HeaderDeadReason] != "swept" || d.Headers[wire.HeaderDeadVerdict] != "unknown" {
			t.Errorf("dead message %s has headers %v", d.MessageId, d.Headers)
		}
		dead[d.MessageId] = true
	}
	if !dead[late.ID.String()] || !dead[unknown.ID.String()] {
		t.Errorf("dead: %v", dead)
	}
	s.Eventually("the younger ones are dropped", func() bool { return v.Stats().Dropped == 2 })
}

// The ordered queues must be empty too.
func TestOrphanRowsAreSweptWhenTheQueuesAreEmpty(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, bridge.Topology{})
	queue := s.Queue("target", nil)
	orphan, young := named(queue, "lost"), named(queue, "young")
	for _, m := range []bridge.Message{orphan, young} {
		if err := recorded(t, s, m).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.DB.ExecContext(t.Context(), `UPDATE bridge_ledger SET recorded_at = now() - interval '3 hours' WHERE id = $1`, orphan.ID); err != nil {
		t.Fatal(err)
	}
	v := s.Verify(verifier.Options{SweepAge: 2 * time.Hour})
	s.Eventually("the orphan is swept", func() bool { return v.Stats().Swept == 1 })
	if n := s.Rows(); n != 1 {
		t.Errorf("%d rows are left, want the young one", n)
	}
}

// An operator could find and undo a wrong drop.
func TestDroppedMessagesCanBeReadFromTheAuditQueue(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	s.Topology.Audit = 5
	v := s.Verify(verifier.Options{})
	s.Evidence()
	var rolledBack []uuid.UUID
	for range 8 {
		rolledBack = append(rolledBack, s.RollBack(stage.To(queue, "rolled back"))...)
		s.Eventually("it is dropped", func() bool { return v.Stats().Dropped == int64(len(rolledBack)) })
	}
	for i, d := range s.Receive(s.Topology.AuditQueue(), 5) {
		if d.MessageId != rolledBack[3+i].String() || d.Headers[wire.HeaderDroppedAt] == nil {
			t.Errorf("audit queue: %s with headers %v", d.MessageId, d.Headers)
		}
		if again, err := wire.Parse(d); err != nil || string(again.Message.Publishing.Body) != "rolled back" || again.RoutingKey != queue {
			t.Errorf("the copy cannot be staged again: %+v (%v)", again, err)
		}
	}
	// Without the audit queue, dropping goes on.
	if _, err := s.Channel.QueueDelete(s.Topology.AuditQueue(), false, false, false); err != nil {
		t.Fatal(err)
	}
	s.RollBack(stage.To(queue, "rolled back"))
	s.Eventually("it is dropped too", func() bool { return v.Stats().Dropped == 9 })
	if n := v.Stats(); n.Sessions != 1 || n.DeadLettered != 0 {
		t.Errorf("stats %+v", n)
	}
}
