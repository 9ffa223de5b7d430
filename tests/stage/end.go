package stage

import (
	"fmt"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/compose/reconcile"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// The checks at the end of a test.

// A Failer is a test that may fail: a testing.TB, or a *rapid.T.
type Failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Left returns the numbers of ready messages and of consumers in the staging, waiting and ordered
// queues. Without a consumer no message is unacked.
func (s *Stage) Left() (messages, consumers int, err error) {
	for _, queue := range append(s.Topology.OrderedQueues(), s.Topology.Queue, s.Topology.WaitingQueue()) {
		q, err := s.Channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			return 0, 0, fmt.Errorf("inspect queue %q: %w", queue, err)
		}
		messages += q.Messages
		consumers += q.Consumers
	}
	return messages, consumers, nil
}

// HandedBack waits until these queues have no consumer, so that all unacked messages are back in
// them, and returns their number of messages.
func (s *Stage) HandedBack(t Failer) (messages int) {
	t.Helper()
	servertest.Eventually(t, "no consumer is left", func() bool {
		n, consumers, err := s.Left()
		if err != nil {
			t.Fatalf("%v", err)
		}
		messages = n
		return consumers == 0
	}, s.State)
	return messages
}

// Finish calls judge until no message is left in these queues. judge starts a verifier, waits until
// it has judged that many messages, and stops it. One call is enough, except for a broker that loses
// some acks when the channel of very many ends (see the verifier's acks.finish): those messages are
// delivered again. If only markers are left, Finish removes them, so it does not notice a marker that
// every verifier hands back.
func (s *Stage) Finish(t Failer, judge func(messages int)) {
	t.Helper()
	const rounds = 12
	for round := 0; s.HandedBack(t) > 0; round++ {
		if round == rounds {
			t.Fatalf("messages are handed back again and again, by each of %d verifiers%s", rounds, s.State())
		}
		// An ending verifier hands a group back whole, so every member counts.
		n := len(s.Staged()) + len(s.Waiting())
		for _, queue := range s.Topology.OrderedQueues() {
			n += len(s.inOrder(queue))
		}
		if n == 0 {
			s.takeMarkers()
			continue
		}
		judge(n)
	}
}

// takeMarkers removes the markers from the staging and the waiting queue, once no verifier is left.
// A verifier holds a marker for a second, so one that stops sooner hands it back.
func (s *Stage) takeMarkers() {
	s.t.Helper()
	for _, queue := range []string{s.Topology.Queue, s.Topology.WaitingQueue()} {
		conn, ch := s.dial()
		for range s.Depth(queue) {
			d, ok, err := ch.Get(queue, false)
			s.must("get", err)
			if ok && wire.IsMarker(d) {
				s.must("ack", d.Ack(false))
			}
		}
		s.must("close", conn.Close()) // hands back a message that has just come
	}
}

// WantNothingLeft fails the test if messages are in these queues or in the dead queue.
func (s *Stage) WantNothingLeft(t Failer) {
	t.Helper()
	if n := s.HandedBack(t); n != 0 {
		t.Errorf("%d messages are still staged", n)
	}
	if n := s.Depth(s.Topology.DeadQueue()); n != 0 {
		t.Errorf("%d messages are in the dead queue", n)
	}
}

// Take removes and returns all ready messages of a queue.
func (s *Stage) Take(queue string) (taken []amqp.Delivery, err error) {
	for {
		const autoAck = true
		d, ok, err := s.Channel.Get(queue, autoAck)
		if err != nil {
			return nil, fmt.Errorf("get from queue %q: %w", queue, err)
		}
		if !ok {
			return taken, nil
		}
		taken = append(taken, d)
	}
}

// Delivered takes all messages from a queue and returns the number of copies of each. order has the
// IDs in the order of their first copies. A changed message is an error.
func (s *Stage) Delivered(t Failer, queue string, asSent func(amqp.Delivery) bool) (copies map[uuid.UUID]int, order []uuid.UUID) {
	t.Helper()
	taken, err := s.Take(queue)
	if err != nil {
		t.Fatalf("%v", err)
	}
	copies = make(map[uuid.UUID]int)
	for _, d := range taken {
		id, err := uuid.Parse(d.MessageId)
		if err != nil || !asSent(d) {
			t.Errorf("message %q has changed: %q, headers %v", d.MessageId, d.Body, d.Headers)
			continue
		}
		if copies[id]++; copies[id] == 1 {
			order = append(order, id)
		}
	}
	return copies, order
}

// Compare fails the test unless exactly the committed messages were delivered. It returns the number
// of copies of each message that was delivered more than once.
func Compare[ID comparable, V any](t Failer, committed map[ID]V, copies map[ID]int) (repeated map[ID]int) {
	t.Helper()
	d := reconcile.Compare(committed, copies)
	for _, id := range d.Lost {
		t.Errorf("%v was committed and not delivered", id)
	}
	for _, id := range d.Invented {
		t.Errorf("%v was delivered and not committed", id)
	}
	return d.Repeated
}

// CompareOnce is Compare for tests in which no message may be delivered more than once.
func CompareOnce[ID comparable, V any](t Failer, committed map[ID]V, copies map[ID]int) {
	t.Helper()
	for id, n := range Compare(t, committed, copies) {
		t.Errorf("%v was delivered %d times", id, n)
	}
}

// WantOnce takes all messages from a queue, and fails the test unless they are exactly these, each
// once.
func (s *Stage) WantOnce(queue string, ids ...uuid.UUID) {
	s.t.Helper()
	committed := make(map[uuid.UUID]bool)
	for _, id := range ids {
		committed[id] = true
	}
	copies, _ := s.Delivered(s.t, queue, func(amqp.Delivery) bool { return true })
	CompareOnce(s.t, committed, copies)
}

// IDs returns the IDs that a query selects.
func (s *Stage) IDs(t Failer, query string) (ids []uuid.UUID) {
	t.Helper()
	rows, err := s.DB.QueryContext(s.t.Context(), query)
	if err != nil {
		t.Fatalf("query IDs: %v", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			t.Fatalf("scan ID: %v", err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("read IDs: %v", err)
	}
	return ids
}
