package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
)

// That an effect was not done must be in the inbox before it is known: the package comment
// says so. Nothing is repeated meanwhile, and the message is stored for who finds out.
func TestAnEffectThatWasNotDoneIsDoubtfulIfTheInboxCannotBeTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := newReceiver(t, idempotency.Options{DeadLetterExchange: true}), &mailbox{}
		err := r.guard.AtMostOnce(t.Context(), r.db, r.delivery("m1"), func(context.Context, amqp.Delivery) error {
			r.faults.commit = func(func() error) error { return errNetwork }
			return idempotency.NotDone(errSMTP)
		})
		if !errors.Is(err, idempotency.ErrHandedBack) || !errors.Is(err, errNetwork) {
			t.Errorf("got %v", err)
		}
		r.faults.commit = nil
		r.pending(idempotency.Started)
		r.once(m.send())
		r.overdue()
		if p := r.pending(idempotency.Doubtful); !p.Stored {
			t.Errorf("pending is %+v", p)
		}
		m.want(t)
		r.wantSaid("requeue 1", "ack 2")
	})
}
