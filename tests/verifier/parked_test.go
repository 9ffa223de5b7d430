package verifier_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// parkingSender stages through broker, and parks.
func parkingSender(t *testing.T, s *stage.Stage, broker *bridge.Broker, parking sender.Parking) *sender.Sender {
	t.Helper()
	return parkingAfter(t, s, broker, parking, 300*time.Millisecond)
}

// parkingAfter parks what has no confirm after a while.
func parkingAfter(t *testing.T, s *stage.Stage, broker *bridge.Broker, parking sender.Parking, after time.Duration) *sender.Sender {
	t.Helper()
	out, err := sender.New(s.Ledger, broker, &sender.Options{
		Queue: s.Topology.Queue, Parking: parking, ParkAfter: after, Timeout: stage.Patience, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// transact sends messages in one transaction, which commits or not.
func transact(t *testing.T, s *stage.Stage, sender *sender.Sender, commits bool, messages ...bridge.Message) []uuid.UUID {
	t.Helper()
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	ids, err := sender.SendTx(t.Context(), bridge.SQL(tx), messages...)
	if err != nil {
		t.Fatalf("send: %v", err)
	}
	if commits {
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	return ids
}

func some(queue string, n int) []bridge.Message {
	messages := make([]bridge.Message, n)
	for i := range messages {
		messages[i] = stage.To(queue, fmt.Sprint(i))
	}
	return messages
}

func count(t *testing.T, s *stage.Stage, table string) (n int) {
	t.Helper()
	if err := s.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM `+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A plain transactional outbox: the broker need not even exist when the sender
// commits.
func TestParkedMessagesAreDeliveredIfAndOnlyIfTheirTransactionCommits(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	outbox := parkingSender(t, s, nil, sender.ParkAlways)
	want := map[string]bool{}
	for range 20 {
		add(want, transact(t, s, outbox, true, some(queue, 40)...)...)
		transact(t, s, outbox, false, some(queue, 3)...)
	}
	if n := s.Depth(s.Topology.Queue); n != 0 {
		t.Errorf("%d messages were staged", n)
	}
	v := s.Verify(verifier.Options{})
	expectAll(t, s, queue, want)
	s.Eventually("nothing is parked", func() bool { return count(t, s, "bridge_parked") == 0 && s.Rows() == 0 })
	v.Stop()
	if n := v.Stats().Unparked; n < int64(len(want)) {
		t.Errorf("%d unparked, want %d", n, len(want))
	}
}

// Broker down must not mean business down.
func TestAnOutageOfTheBrokerStopsNoTransaction(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	valve, address := servertest.Through(t, s.AMQP)
	broker, err := bridge.NewBroker(address, &bridge.BrokerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	parking := parkingAfter(t, s, broker, sender.ParkOnOutage, stage.Patience) // no confirm is so slow
	want := map[string]bool{}
	commit := func(n int) { add(want, transact(t, s, parking, true, some(queue, n)...)...) }
	commit(3)
	if n := count(t, s, "bridge_parked"); n != 0 {
		t.Errorf("%d parked while the broker is there", n)
	}

	parking = parkingSender(t, s, broker, sender.ParkOnOutage)
	valve.HoldReplies() // half-open: confirms do not come
	for range 20 {
		commit(2)
	}
	if n := count(t, s, "bridge_parked"); n < 38 {
		t.Errorf("%d of 40 are parked", n)
	}
	transact(t, s, parking, false, some(queue, 2)...)
	valve.Release()
	s.Eventually("messages are staged again", func() bool {
		before := count(t, s, "bridge_parked")
		commit(1)
		return count(t, s, "bridge_parked") == before
	})
	s.Verify(verifier.Options{})
	expectAll(t, s, queue, want)
	s.Eventually("nothing is parked", func() bool { return count(t, s, "bridge_parked") == 0 && s.Rows() == 0 })
}

// What the sweep has taken wrongly is not dropped, and what is younger still is.
func TestAnAbsentMessageOlderThanASweepIsNotDropped(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	const old = 3 * time.Hour
	ledger := s.Ledger.Identity()
	// Its row has been there for hours, as its message, which lies in the queue unseen.
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

// The ordered queues too.
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

// A wrong drop could be found and undone.
func TestWhatIsDroppedAsRolledBackCanBeSeen(t *testing.T) {
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
	// Without the queue, dropping goes on.
	if _, err := s.Channel.QueueDelete(s.Topology.AuditQueue(), false, false, false); err != nil {
		t.Fatal(err)
	}
	s.RollBack(stage.To(queue, "rolled back"))
	s.Eventually("it is dropped too", func() bool { return v.Stats().Dropped == 9 })
	if n := v.Stats(); n.Sessions != 1 || n.DeadLettered != 0 {
		t.Errorf("stats %+v", n)
	}
}
