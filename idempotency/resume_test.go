package idempotency_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
)

// resume lets Resume run until it has nothing left to do.
func (r *receiver) resume(effect idempotency.Effect) {
	r.t.Helper()
	r.until("nothing is ready or started", func(counts map[idempotency.State]int64) bool {
		return counts[idempotency.Ready]+counts[idempotency.Started] == 0
	}, 1, func(ctx context.Context) error { return r.guard.Resume(ctx, r.db, effect) })
}

// started leaves m1 as a process does that dies in the effect.
func (r *receiver) started() {
	r.t.Helper()
	var worker sync.WaitGroup
	worker.Go(func() {
		err := r.guard.AtMostOnce(r.t.Context(), r.db, r.delivery("m1"), func(context.Context, amqp.Delivery) error {
			goexit()
			return nil
		})
		r.t.Errorf("the effect came back: %v", err)
	})
	worker.Wait()
}

// overdue lets the time pass in which a started message may be heard of.
func (r *receiver) overdue() {
	r.t.Helper()
	r.exec(`UPDATE bridge_inbox_pending SET due_ms = 0`)
}

func TestAnOperatorEndsADoubt(t *testing.T) {
	for name, c := range map[string]struct {
		stored bool
		decide func(r *receiver) error
		sent   []string
	}{
		"stored, done": {true, func(r *receiver) error { return r.guard.MarkDone(r.t.Context(), r.db, "m1") }, nil},
		"stored, retry": {true, func(r *receiver) error { return r.guard.Retry(r.t.Context(), r.db, "m1") },
			[]string{"m1"}},
		"not stored, done": {false, func(r *receiver) error { return r.guard.MarkDone(r.t.Context(), r.db, "m1") }, nil},
		"not stored, retry": {false, func(r *receiver) error { return r.guard.Retry(r.t.Context(), r.db, "m1") },
			[]string{"m1"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, m := newReceiver(t, idempotency.Options{Poll: time.Millisecond}), &mailbox{}
			r.started()
			if c.stored {
				r.once(m.send())
			}
			if err := c.decide(r); !errors.Is(err, idempotency.ErrUnderWay) {
				t.Fatalf("decided while it is under way: %v", err)
			}
			r.overdue()
			if p := r.pending(idempotency.Doubtful); p.Stored != c.stored || p.Error == "" {
				t.Errorf("pending is %+v", p)
			}
			m.want(t)
			must(t, c.decide(r))
			if c.stored {
				r.resume(m.send())
			}
			r.once(m.send())
			m.want(t, c.sent...)
			r.wantRows(0, 1)
			r.wantNothingPending()
			if err := c.decide(r); !errors.Is(err, idempotency.ErrNotPending) {
				t.Errorf("decided again: %v", err)
			}
		})
	}
}

func TestACallbackEndsADoubt(t *testing.T) {
	for name, c := range map[string]struct {
		verdicts []any
		sent     []string
	}{
		"done":                     {[]any{idempotency.Done}, nil},
		"not done":                 {[]any{idempotency.NotDoneYet}, []string{"m1"}},
		"first unknown, then done": {[]any{idempotency.Unknown, errSMTP, idempotency.Done}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := &mailbox{}
			verdicts := c.verdicts
			r := newReceiver(t, idempotency.Options{Poll: time.Millisecond, MinDelay: time.Millisecond, MaxDelay: time.Millisecond,
				FindOut: func(_ context.Context, p idempotency.Pending) (idempotency.Verdict, error) {
					if p.Key != "m1" || p.Message.MessageId != "m1" || p.State != idempotency.Doubtful {
						t.Errorf("asked about %+v", p)
					}
					next := verdicts[0]
					verdicts = verdicts[1:]
					if err, failed := next.(error); failed {
						return idempotency.Done, err
					}
					return next.(idempotency.Verdict), nil
				}})
			r.once(m.send(errSMTP))
			r.until("nothing is pending", nothing, 1, func(ctx context.Context) error { return r.guard.Resume(ctx, r.db, m.send()) })
			m.want(t, append([]string{"m1"}, c.sent...)...)
			if len(verdicts) > 0 {
				t.Errorf("not asked: %v", verdicts)
			}
		})
	}
}

func TestResumeGivesUpAfterItsAttemptsAndAnOperatorMayStartAgain(t *testing.T) {
	r, m := newReceiver(t, idempotency.Options{Attempts: 2, Poll: time.Millisecond, MinDelay: time.Millisecond}), &mailbox{}
	notDone := idempotency.NotDone(errSMTP)
	r.once(m.send(errSMTP))
	must(t, r.guard.Retry(t.Context(), r.db, "m1"))
	r.resume(m.send(notDone, notDone))
	if p := r.pending(idempotency.Failed); p.Attempts != 2 || p.Error != errSMTP.Error() {
		t.Errorf("pending is %+v", p)
	}
	m.want(t, "m1", "m1", "m1")
	r.once(m.send()) // the message comes again, and is in the inbox already
	m.want(t, "m1", "m1", "m1")
	must(t, r.guard.Retry(t.Context(), r.db, "m1"))
	r.resume(m.send())
	m.want(t, "m1", "m1", "m1", "m1")
	r.wantNothingPending()
}

func TestAResumedMessageWhoseProcessDiesIsDoubtfulAgain(t *testing.T) {
	r, m := newReceiver(t, idempotency.Options{Poll: time.Millisecond}), &mailbox{}
	r.once(m.send(errSMTP))
	must(t, r.guard.Retry(t.Context(), r.db, "m1"))
	var worker sync.WaitGroup
	worker.Go(func() {
		_ = r.guard.Resume(t.Context(), r.db, func(ctx context.Context, d amqp.Delivery) error {
			_ = m.send()(ctx, d)
			goexit()
			return nil
		})
	})
	worker.Wait()
	r.pending(idempotency.Started)
	r.overdue()
	r.resume(m.send())
	m.want(t, "m1", "m1")
	if p := r.pending(idempotency.Doubtful); !p.Stored || p.Attempts != 1 {
		t.Errorf("pending is %+v", p)
	}
}

// The body that an effect gets is its own: what it writes into it is not stored.
func TestAnEffectDoesNotChangeWhatIsStored(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	d := r.delivery("m1")
	d.Body = []byte("body")
	must(t, r.guard.Accept(t.Context(), r.db, d))
	r.resume(func(_ context.Context, d amqp.Delivery) error {
		clear(d.Body)
		return errSMTP
	})
	if p := r.pending(idempotency.Doubtful); string(p.Message.Body) != "body" {
		t.Errorf("stored %q", p.Message.Body)
	}
}
