// Package verifier_test checks a running verifier against the rules of package bridge, on real
// servers.
package verifier_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestCommittedIsForwardedAndRolledBackIsDropped(t *testing.T) {
	t.Parallel()
	for _, kind := range stage.Everywhere {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			s := stage.New(t, kind)
			queue := s.Queue("target", nil)
			committed := make(map[uuid.UUID]bool)
			for i := range 50 {
				committed[s.Commit(stage.To(queue, fmt.Sprint(i)))[0]] = true
				s.RollBack(stage.To(queue, "rolled back"))
			}
			v := s.Verify(verifier.Options{})
			s.Eventually("50 are forwarded and 50 dropped", func() bool { return v.Stats().Forwarded == 50 && v.Stats().Dropped == 50 })
			v.Stop()
			s.Finish(t, func(left int) { // RabbitMQ 3.10 may lose acks when the channel ends
				v := s.Verify(verifier.Options{})
				s.Evidence()
				s.Eventually("the messages that came again are dropped", func() bool { return v.Stats().Forwarded == 1 && v.Stats().Dropped >= int64(left) })
				v.Stop()
			})
			copies, _ := s.Delivered(t, queue, func(d amqp.Delivery) bool { return string(d.Body) != "rolled back" && len(d.Headers) == 0 })
			stage.CompareOnce(t, committed, copies)
			if n := s.Rows(); n != 0 {
				t.Errorf("%d rows left in the ledger", n)
			}
		})
	}
}
