package verifier_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// The sender's own limit is what the broker takes by default on every release, to the
// byte; what exceeds it touches neither the database nor the broker.
func TestTheLargestMessageIsDeliveredAndALargerOneIsNotRecorded(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	largest := stage.To(queue, "")
	largest.Publishing.Body = bytes.Repeat([]byte("x"), 16<<20)
	larger := largest
	larger.Publishing.Body = append(bytes.Clone(largest.Publishing.Body), 'x')
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sender.SendTx(t.Context(), tx, larger); !errors.Is(err, bridge.ErrInvalidMessage) {
		t.Errorf("a larger one: %v", err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := s.Rows(); n != 0 {
		t.Errorf("%d rows", n)
	}
	s.Commit(largest)
	s.Verify(verifier.Options{})
	if d := s.Receive(queue, 1)[0]; len(d.Body) != len(largest.Publishing.Body) {
		t.Errorf("the body has %d bytes", len(d.Body))
	}
}

// A broker that takes less than it did when messages were staged, as after an upgrade
// from 3.x to 4.x, refuses them at their targets, and in the verifier's own queues too.
func TestMessagesThatHaveBecomeTooLargeReachTheDeadQueueThroughTheBroker(t *testing.T) {
	t.Parallel()
	broker := servertest.StartRabbitMQ(t, nil)
	s := stage.On(t, stage.Postgres, broker.URL(), bridge.Topology{Queue: "staging"})
	queue := s.Queue("target", nil)
	ids := goodBatch(s, queue, many/10)
	large := stage.To(queue, strings.Repeat("x", 70_000))
	dead := map[string]bool{s.Commit(large)[0].String(): true}
	open, late := s.Begin(large, stage.To(queue, "small"))
	dead[late[0].String()] = true
	publish(t, s, amqp.Publishing{MessageId: "malformed"})
	for id := range goodBatch(s, queue, many/10) {
		ids[id] = true
	}
	if err := broker.SetMaxMessageSize(t.Context(), 66_000); err != nil {
		t.Fatal(err)
	}
	v := s.Verify(verifier.Options{Patience: 200 * time.Millisecond})
	expectAll(t, s, queue, ids)
	for _, d := range s.Receive(s.Topology.DeadQueue(), 3) {
		_, moved := d.Headers["x-death"]
		if large := dead[d.MessageId]; large != moved || !large && d.MessageId != "malformed" {
			t.Errorf("message %s is dead, with headers %v", d.MessageId, d.Headers)
		}
	}
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	expectAll(t, s, queue, map[string]bool{late[1].String(): true})
	// Nobody has confirmed what the broker moved: its rows stay.
	s.Eventually("the rows of the large ones are left", func() bool { return s.Rows() == len(dead) })
	if n := v.Stats(); n.Sessions != 1 || n.DeadLettered != 3 {
		t.Errorf("stats %+v", n)
	}
}
