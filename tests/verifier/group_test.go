package verifier_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
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

// recordOf is a message's record in a group.
func recordOf(t *testing.T, s *stage.Stage, ledger uuid.UUID, m bridge.Message) []byte {
	t.Helper()
	staged, err := wire.Encode(m, ledger)
	if err != nil {
		t.Fatal(err)
	}
	return wire.EncodeRecord(staged)
}

// recorded begins a transaction that has recorded the message, past the sender.
func recorded(t *testing.T, s *stage.Stage, m bridge.Message) interface{ Commit() error } {
	t.Helper()
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	if err := s.Ledger.Record(t.Context(), bridge.SQL(tx), []uuid.UUID{m.ID}); err != nil {
		t.Fatal(err)
	}
	return tx
}

func named(queue, body string) bridge.Message {
	m := stage.To(queue, body)
	m.ID = uuid.New()
	return m
}

// Rules 1, 3 and 8 hold for every member of a group by itself.
func TestEachMemberOfAGroupIsJudgedByItself(t *testing.T) {
	t.Parallel()
	onAll(t, func(t *testing.T, s *stage.Stage) {
		queue := s.Queue("target", nil)
		committed, rolledBack, unroutable := named(queue, "committed"), named(queue, "rolled back"), named("missing", "unroutable")
		for _, m := range []bridge.Message{committed, unroutable} {
			if err := recorded(t, s, m).Commit(); err != nil {
				t.Fatal(err)
			}
		}
		patience := 300 * time.Millisecond
		if s.Kind.Name == stage.SQLite.Name {
			patience = time.Hour // nothing settles while its one writer writes
		}
		v := s.Verify(verifier.Options{Unroutable: 200 * time.Millisecond, Patience: patience})
		s.Eventually("the proof is given", func() bool { return v.Stats().Sessions == 1 })
		late := named(queue, "late")
		open := recorded(t, s, late)
		malformed := wire.EncodeRecord(amqp.Publishing{MessageId: "42", Headers: amqp.Table{"x-bridge-exchange": ""}})
		publish(t, s, wire.Group(s.Ledger.Identity(),
			recordOf(t, s, s.Ledger.Identity(), late),
			recordOf(t, s, s.Ledger.Identity(), rolledBack),
			malformed,
			recordOf(t, s, s.Ledger.Identity(), unroutable),
			recordOf(t, s, s.Ledger.Identity(), committed),
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
		dead := map[any]string{}
		for _, d := range s.Receive(s.Topology.DeadQueue(), 2) {
			dead[d.Headers[wire.HeaderDeadReason]] = d.MessageId
		}
		if dead["malformed"] != "42" || dead["unroutable"] != unroutable.ID.String() {
			t.Errorf("dead: %v", dead)
		}
		s.Eventually("the rolled-back one is dropped", func() bool { return v.Stats().Dropped == 1 })
		v.Stop()
		if n := s.Depth(s.Topology.Queue) + s.Depth(s.Topology.WaitingQueue()); n != 0 {
			t.Errorf("%d messages are left in the queues", n)
		}
		if n := s.Rows(); n != 0 {
			t.Errorf("%d rows are left", n)
		}
	})
}

// A group is one delivery, and is acked when the last of its members is done.
func TestAGroupComesAgainUntilItsLastMemberIsDone(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	ledger := s.Ledger.Identity()
	first, second := named(queue, "first"), named(queue, "second")
	if err := recorded(t, s, first).Commit(); err != nil {
		t.Fatal(err)
	}
	open := recorded(t, s, second)
	publish(t, s, wire.Group(ledger, recordOf(t, s, ledger, first), recordOf(t, s, ledger, second)))
	v := s.Verify(verifier.Options{Patience: time.Hour})
	s.Receive(queue, 1)
	s.Eventually("the first one's row is deleted", func() bool { return s.Rows() == 0 })
	v.Stop()
	s.WaitDepth(s.Topology.Queue, 1)

	v = s.Verify(verifier.Options{Patience: time.Hour})
	s.Eventually("the first one is absent, and dropped", func() bool { return v.Stats().Dropped == 1 })
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	if d := s.Receive(queue, 1)[0]; d.MessageId != second.ID.String() {
		t.Errorf("forwarded: %s", d.MessageId)
	}
	v.Stop()
	if n := s.Depth(s.Topology.Queue); n != 0 {
		t.Errorf("%d messages are left in the staging queue", n)
	}
}

func TestAGroupThatCannotBeTakenApartIsDeadLetteredWhole(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	m := named(queue, "")
	group := wire.Group(s.Ledger.Identity(), recordOf(t, s, s.Ledger.Identity(), m))
	group.Body = group.Body[:len(group.Body)-1]
	publish(t, s, group)
	ids := goodBatch(s, queue, 10)
	s.Verify(verifier.Options{})
	expectAll(t, s, queue, ids)
	if d := expectDead(t, s, "malformed", "cut short"); string(d.Body) != string(group.Body) || d.Headers[wire.HeaderGroup] != "1" {
		t.Errorf("the dead group has body %q and headers %v", d.Body, d.Headers)
	}
}

// A member with headers that no frame can carry still reaches the dead queue, and
// stops nobody.
func TestAMemberThatCannotBeReadIsDeadLetteredAsARecord(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	ledger := s.Ledger.Identity()
	good := named(queue, "good")
	if err := recorded(t, s, good).Commit(); err != nil {
		t.Fatal(err)
	}
	huge := wire.EncodeRecord(amqp.Publishing{
		MessageId: uuid.NewString(),
		Headers: amqp.Table{
			wire.HeaderExchange: "", wire.HeaderRoutingKey: queue, "huge": strings.Repeat("x", 200_000),
		},
	})
	publish(t, s, wire.Group(ledger, huge, recordOf(t, s, ledger, good)))
	v := s.Verify(verifier.Options{})
	s.Receive(queue, 1)
	if d := expectDead(t, s, "malformed", "bytes of properties"); !bytes.Equal(d.Body, huge) {
		t.Errorf("the dead message has %d bytes, not the record's %d", len(d.Body), len(huge))
	}
	v.Stop()
	if n := s.Depth(s.Topology.Queue); n != 0 {
		t.Errorf("%d messages are left in the staging queue", n)
	}
}

// Headers that are small and many fit into a record and into no frame with the dead
// queue's. Such a member goes to the dead queue as a record; the others of its group are
// judged, and nothing is rejected.
func TestAMemberOfManyHeadersIsDeadLetteredAsARecord(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	ledger := s.Ledger.Identity()
	good := named(queue, "good")
	if err := recorded(t, s, good).Commit(); err != nil {
		t.Fatal(err)
	}
	many := amqp.Table{wire.HeaderExchange: "", wire.HeaderRoutingKey: queue}
	for i := range 9000 {
		many[fmt.Sprintf("%04x", i)] = true
	}
	record := wire.EncodeRecord(amqp.Publishing{MessageId: uuid.NewString(), Headers: many})
	publish(t, s, wire.Group(ledger, record, recordOf(t, s, ledger, good)))
	v := s.Verify(verifier.Options{})
	if d := s.Receive(queue, 1)[0]; d.MessageId != good.ID.String() {
		t.Errorf("message %s came", d.MessageId)
	}
	if d := expectDead(t, s, "malformed", "headers"); !bytes.Equal(d.Body, record) {
		t.Errorf("the dead message has %d bytes, not the record's %d", len(d.Body), len(record))
	}
	v.Stop()
	if n := s.Depth(s.Topology.Queue) + s.Depth(s.Topology.DeadQueue()); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}

// Rule 10: groups bring many messages with few deliveries, and a verifier takes no
// more apart than it may hold.
func TestMessagesInGroupsAreBounded(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	const size, groups, prefetch = 20, 50, 40
	want := map[string]bool{}
	for i := range groups {
		var messages []bridge.Message
		for j := range size {
			messages = append(messages, stage.To(queue, fmt.Sprint(i, j)))
		}
		for _, id := range s.Commit(messages...) {
			want[id.String()] = true
		}
	}
	if n := s.Depth(s.Topology.Queue); n != groups {
		t.Fatalf("%d messages in the staging queue, want %d groups", n, groups)
	}
	ledger := &heldLedger{Ledger: s.Ledger, of: want, held: map[uuid.UUID]bool{}, full: make(chan struct{}), enough: prefetch}
	s.Ledger = ledger
	v := s.Verify(verifier.Options{Prefetch: prefetch})
	expectAll(t, s, queue, want)
	v.Stop()
	if ledger.most > prefetch+size {
		t.Errorf("%d messages were held, more than a prefetch of %d and a group of %d", ledger.most, prefetch, size)
	}
}

// heldLedger counts the messages that were looked up and not forgotten. It forgets
// none before there are enough. The proof's IDs are no messages.
type heldLedger struct {
	driver.Ledger
	of     map[string]bool
	enough int

	mu   sync.Mutex
	held map[uuid.UUID]bool
	most int
	full chan struct{} // closed when enough are held
}

func (l *heldLedger) Committed(ctx context.Context, ids []uuid.UUID) ([]uuid.UUID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if l.of[id.String()] {
			l.held[id] = true
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

func (l *heldLedger) Forget(ctx context.Context, ids []uuid.UUID) error {
	if len(ids) > 1 {
		select {
		case <-l.full:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		delete(l.held, id)
	}
	return l.Ledger.Forget(ctx, ids)
}

// An orderly stop hands back a group whole. A member that was set aside before must not be
// there twice then.
func TestAStopLeavesEachMessageOfAGroupOnce(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	open, ids := s.Begin(stage.To(queue, "1"), stage.To(queue, "2"), stage.To(queue, "3"))
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
