package stage

import (
	"fmt"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// What a test does and finds when all is over.

// A Failer is a test that may fail: a testing.TB, or a *rapid.T.
type Failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Left is how many messages are ready in the staging, the waiting and the ordered queues, and how many
// consumers those have: once there is none, nothing is unacked any more.
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

// HandedBack waits until these queues have no consumer, and so got back all that was
// unacked, and returns how many messages they hold.
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

// Finish has judge judge what is left in these queues, until nothing is. judge starts a
// verifier, waits until it has judged so many messages, and stops it. Once is enough, but for
// a broker that loses some acks when the channel of very many ends (see the verifier's
// acks.finish): those messages come once more.
func (s *Stage) Finish(t Failer, judge func(messages int)) {
	t.Helper()
	const rounds = 12
	for round := 0; s.HandedBack(t) > 0; round++ {
		if round == rounds {
			t.Fatalf("messages are handed back again and again, by each of %d verifiers%s", rounds, s.State())
		}
		// A verifier that ends hands a group back whole, so its members count.
		n := len(s.Staged()) + len(s.Waiting())
		for _, queue := range s.Topology.OrderedQueues() {
			n += len(s.inOrder(queue))
		}
		judge(n)
	}
}

// WantNothingLeft wants no message in these queues, and none in the dead queue.
func (s *Stage) WantNothingLeft(t Failer) {
	t.Helper()
	if n := s.HandedBack(t); n != 0 {
		t.Errorf("%d messages are still staged", n)
	}
	if n := s.Depth(s.Topology.DeadQueue()); n != 0 {
		t.Errorf("%d messages are in the dead queue", n)
	}
}

// Take takes all messages that are ready in a queue.
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

// Delivered takes all messages from a queue and counts the copies of each. order has the IDs
// in the order of their first copies. A message that has changed on its way is an error.
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

// Compare compares what was committed with what was delivered, by its copies.
func Compare(t Failer, committed map[uuid.UUID]bool, copies map[uuid.UUID]int) {
	t.Helper()
	for id := range committed {
		if copies[id] == 0 {
			t.Errorf("%s was committed and not delivered", id)
		}
	}
	for id := range copies {
		if !committed[id] {
			t.Errorf("%s was delivered and not committed", id)
		}
	}
}

// IDs are those that a query returns.
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
