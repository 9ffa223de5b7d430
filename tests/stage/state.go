package stage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// State describes the queues, the ledger and the verifiers, for the failure of a test.
func (s *Stage) State() string {
	var out strings.Builder
	fmt.Fprintln(&out, "\nthis is how things stand:")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, queue := range slices.Concat(s.queues, s.Topology.OrderedQueues(), []string{s.Topology.Queue, s.Topology.WaitingQueue(), s.Topology.DeadQueue()}) {
		fmt.Fprintf(&out, "%s: %s\n", queue, s.look(queue))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var rows int
	err := s.DB.QueryRowContext(ctx, `SELECT count(*) FROM bridge_ledger`).Scan(&rows)
	fmt.Fprintf(&out, "ledger: %d rows, error %v; pool %+v\n", rows, err, s.DB.Stats())
	for i, r := range s.running {
		fmt.Fprintf(&out, "verifier %d of %d: ended %t, %+v\n", i+1, len(s.running), len(r.ended) > 0, r.Stats())
	}
	return out.String()
}

// look inspects a queue on a new channel, since a missing queue closes the channel.
func (s *Stage) look(queue string) string {
	conn, err := amqp.Dial(s.AMQP)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return err.Error()
	}
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d ready, %d consumers", q.Messages, q.Consumers)
}
