package stage

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// What a test finds when all is over. These return errors, for tests that fail in
// another way than by the stage's own testing.TB.

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

// IDs are those that a query returns.
func (s *Stage) IDs(ctx context.Context, query string) (ids []uuid.UUID, err error) {
	rows, err := s.DB.QueryContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("query IDs: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("scan ID: %w", err)
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}
