package engine

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
)

// refusing is a publisher that fails in one way.
type refusing struct {
	err       error
	published map[string]int // by queue
}

func (r *refusing) Publish(_ context.Context, messages []bridge.Outgoing) error {
	for _, m := range messages {
		r.published[m.Target.RoutingKey]++
	}
	return r.err
}

type noMarks struct{ driver.Marks }

func (noMarks) Transient(error) bool { return false }

type noAcks struct{ amqp.Acknowledger }

func (noAcks) Nack(uint64, bool, bool) error { return nil }

// After a lost confirm the broker may have the copy, and each further one could be another.
func TestALostConfirmLeavesOneCopyOfADelivery(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{{bridge.ErrUnconfirmed, 1}, {bridge.ErrNacked, 4}} {
		synctest.Test(t, func(t *testing.T) {
			broker := &refusing{err: c.err, published: make(map[string]int)}
			queues := NewQueues(broker, "q", []RetryQueue{{"q.retry", time.Second}}, slog.New(slog.DiscardHandler))
			e, err := New(noMarks{}, "receiver", "Options", Options{Queues: queues, Attempts: 5, Logger: queues.log})
			if err != nil {
				t.Fatal(err)
			}
			fails := func(context.Context) (Outcome, error) { return Unfinished, Failure(errors.New("fails")) }
			err = e.Deliver(t.Context(), amqp.Delivery{Acknowledger: noAcks{}, MessageId: "m"}, fails)
			if !errors.Is(err, ErrHandedBack) {
				t.Errorf("error %v, must be ErrHandedBack: the dead queue fails too", err)
			}
			if n := broker.published["q.retry"]; n != c.want {
				t.Errorf("after %v: %d copies were published, must be %d", c.err, n, c.want)
			}
		})
	}
}
