package verifier_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// recordOf returns a message's record in a group.
func recordOf(t *testing.T, s *stage.Stage, ledger uuid.UUID, m bridge.Message) []byte {
	t.Helper()
	staged, err := wire.Encode(m, ledger)
	if err != nil {
		t.Fatal(err)
	}
	return wire.EncodeRecord(staged)
}

// recorded begins a transaction that records the message without a sender.
func recorded(t *testing.T, s *stage.Stage, m bridge.Message) interface{ Commit() error } {
	t.Helper()
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	if err := s.Ledger.Record(t.Context(), bridge.SQL(tx), driver.Plain(m.ID)); err != nil {
		t.Fatal(err)
	}
	return tx
}

func named(queue, body string) bridge.Message {
	m := stage.To(queue, body)
	m.ID = uuid.New()
	return m
}

// Rules 1, 3 and 8 hold for each message of a group separately.
func TestEachMemberOfAGroupIsJudgedByItself(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	committed, rolledBack, unroutable := named(queue, "committed"), named(queue, "rolled back"), named("missing", "unroutable")
	for _, m := range []bridge.Message{committed, unroutable} {
		if err := recorded(t, s, m).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	v := s.Verify(verifier.Options{Unroutable: 200 * time.Millisecond, Patience: 300 * time.Millisecond})
	late := named(queue, "late")
	open := recorded(t, s, late)
	ledger := s.Ledger.Identity()
	publish(t, s, wire.Group(ledger,
		recordOf(t, s, ledger, late),
		recordOf(t, s, ledger, rolledBack),
		wire.EncodeRecord(amqp.Publishing{MessageId: "42", Headers: amqp.Table{"x-bridge-exchange": ""}}),
		recordOf(t, s, ledger, unroutable),
		recordOf(t, s, ledger, committed),
	))
	if d := s.Receive(queue, 1)[0]; d.MessageId != committed.ID.String() || string(d.Body) != "committed" || len(d.Headers) != 0 {
		t.Errorf("forwarded first: %s %q %v", d.MessageId, d.Body, d.Headers)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	if d := s.Receive(queue, 1)[0]; d.MessageId != late.ID.String() {
		t.Errorf("forwarded last: %s", d.MessageId)
	}
	dead, verdicts := map[any]string{}, map[any]any{}
	for _, d := range s.Receive(s.Topology.DeadQueue(), 2) {
		reason := d.Headers[wire.HeaderDeadReason]
		dead[reason], verdicts[reason] = d.MessageId, d.Headers[wire.HeaderDeadVerdict]
	}
	if dead["malformed"] != "42" || dead["unroutable"] != unroutable.ID.String() || verdicts["unroutable"] != "committed" {
		t.Errorf("dead: %v with verdicts %v", dead, verdicts)
	}
	s.Eventually("the rolled-back one is dropped", func() bool { return v.Stats().Dropped == 1 })
	v.Stop()
	if n := s.Depth(s.Topology.Queue) + s.Depth(s.Topology.WaitingQueue()); n != 0 {
		t.Errorf("%d messages are left in the queues", n)
	}
	if n := s.Rows(); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// Rule 10: a group brings many messages in one delivery. A verifier splits only as many groups as
// it may hold messages.
func TestMessagesInGroupsAreBounded(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	const size, groups, prefetch = 20, 50, 40
	want := map[string]bool{}
	for range groups {
		add(want, s.Commit(some(queue, size)...)...)
	}
	if n := s.Depth(s.Topology.Queue); n != groups {
		t.Fatalf("%d messages in the staging queue, want %d groups", n, groups)
	}
	ledger := &heldLedger{Ledger: s.Ledger, of: want, held: map[string]bool{}, full: make(chan struct{}), enough: prefetch}
	s.Ledger = ledger
	v := s.Verify(verifier.Options{Prefetch: prefetch, Observer: ledger})
	expectAll(t, s, queue, want)
	v.Stop()
	if ledger.most > prefetch+size {
		t.Errorf("%d messages were held, more than a prefetch of %d and a group of %d", ledger.most, prefetch, size)
	}
}

// heldLedger counts the messages that were looked up and are not done. It deletes no rows until
// enough are held. The IDs of the proof do not count.
type heldLedger struct {
	driver.Ledger
	of     map[string]bool
	enough int

	mu   sync.Mutex
	held map[string]bool
	most int
	full chan struct{} // closed when enough are held
}

func (l *heldLedger) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, driver.Instance, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if l.of[id.String()] {
			l.held[id.String()] = true
		}
	}
	if l.most = max(l.most, len(l.held)); l.most >= l.enough {
		select {
		case <-l.full:
		default:
			close(l.full)
		}
	}
	return l.Ledger.Committed(ctx, ids)
}

func (l *heldLedger) Forget(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	if len(ids) > 1 {
		select {
		case <-l.full:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return l.Ledger.Forget(ctx, ids)
}

func (l *heldLedger) Done(e verifier.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, e.ID)
}

func (*heldLedger) SessionEnded(error) {}

// A stop hands a group back whole. A message of it that was set aside before must not be there
// twice.
func TestAStopLeavesEachMessageOfAGroupOnce(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	open, ids := s.Begin(some(queue, 3)...)
	if n := s.Depth(s.Topology.Queue); n != 1 {
		t.Fatalf("%d messages in the staging queue, want a group", n)
	}
	v := s.Verify(verifier.Options{Prefetch: 2, Patience: time.Hour})
	s.Eventually("some are set aside", func() bool { return v.Stats().SetAside > 0 })
	v.Stop()
	s.Eventually("all are in the waiting queue", func() bool { return len(s.Waiting()) == len(ids) })
	if n := s.Depth(s.Topology.Queue); n != 0 {
		t.Errorf("%d in the staging queue", n)
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	s.Verify(verifier.Options{})
	s.Receive(queue, len(ids))
	s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	if n := s.Depth(queue); n != 0 {
		t.Errorf("%d came twice", n)
	}
}
