package idempotency_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pending"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// holdingInbox holds back the database's replies as soon as a row is 'started'.
type holdingInbox struct {
	driver.Inbox
	hold func()
}

func (i holdingInbox) AddPending(ctx context.Context, tx bridge.Tx, consumer string, p driver.Pending, due time.Duration) (bool, error) {
	added, err := i.Inbox.AddPending(ctx, tx, consumer, p, due)
	i.hold()
	return added, err
}

// The database confirms a started row late. By then the row has become doubtful, an operator has
// decided, and Resume has run the effect. The first receiver must not run it too.
func TestAnEffectIsNotBegunWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "PostgreSQL")
	valve, through := db.through(t)
	q := newQueue(t, limitless)
	q.publish("m1")

	var effects atomic.Int32
	effect := func(context.Context, amqp.Delivery) error {
		effects.Add(1)
		return nil
	}
	held := make(chan struct{}, 1)
	slow := newPending(t, holdingInbox{through.inbox, func() {
		valve.HoldReplies()
		held <- struct{}{}
	}}, pending.Options{EffectTimeout: 200 * time.Millisecond, MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
	d := next(t, q.consume())
	first := make(chan error, 1)
	go func() { first <- slow.AtMostOnce(t.Context(), through.DB, d, effect) }()
	servertest.Next(t, "the row is written", held)

	other := newPending(t, db.inbox, pending.Options{Poll: time.Millisecond})
	count := func(state pending.State, want int64) func() (bool, error) {
		return func() (bool, error) {
			counts, err := other.Count(t.Context(), db.DB)
			return counts[state] == want, err
		}
	}
	eventually(t, "the row is doubtful", count(pending.Doubtful, 1))
	again := d
	again.Acknowledger = ignored{}
	must(t, other.AtMostOnce(t.Context(), db.DB, again, effect)) // the redelivery stores the message
	must(t, other.Retry(t.Context(), db.DB, "m1"))
	ctx, stop := context.WithCancel(t.Context())
	resumed := make(chan error, 1)
	go func() { resumed <- other.Resume(ctx, db.DB, effect) }()
	eventually(t, "Resume has run the effect", func() (bool, error) { return effects.Load() == 1, nil })
	eventually(t, "it is done", count(pending.Started, 0))
	stop()
	must(t, servertest.Next(t, "the end of Resume", resumed))

	valve.Release()
	must(t, servertest.Next(t, "the end of the first call", first))
	if n := effects.Load(); n != 1 {
		t.Errorf("the effect ran %d times", n)
	}
	if got, want := slow.Stats(), (idempotency.Stats{Duplicates: 1}); got != want {
		t.Errorf("stats are %+v, want %+v", got, want)
	}
	q.wantEmpty()
}

type ignored struct{ amqp.Acknowledger }

func (ignored) Ack(uint64, bool) error { return nil }
