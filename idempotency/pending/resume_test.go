package pending_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

// resume runs Resume until it has no work left.
func (r *receiver) resume(effect pending.Effect) {
	r.T.Helper()
	r.until("nothing is ready or started", func(counts map[pending.State]int64) bool {
		return counts[pending.Ready]+counts[pending.Started] == 0
	}, 1, func(ctx context.Context) error { return r.effects.Resume(ctx, r.DB, effect) })
}

// started leaves m1 like a process that dies in the effect.
func (r *receiver) started() {
	r.T.Helper()
	var worker sync.WaitGroup
	worker.Go(func() {
		err := r.effects.AtMostOnce(r.T.Context(), r.DB, r.Delivery("m1"), func(context.Context, amqp.Delivery) error {
			receivertest.Goexit()
			return nil
		})
		r.T.Errorf("the effect came back: %v", err)
	})
	worker.Wait()
}

// overdue makes started messages overdue.
func (r *receiver) overdue() {
	r.T.Helper()
	r.Exec(`UPDATE bridge_inbox_pending SET due_ms = 0`)
}

func TestAnOperatorEndsADoubt(t *testing.T) {
	for name, c := range map[string]struct {
		stored bool
		decide func(r *receiver) error
		sent   []string
	}{
		"stored, done": {true, func(r *receiver) error { return r.rows.MarkDone(r.T.Context(), r.DB, "m1") }, nil},
		"stored, retry": {true, func(r *receiver) error { return r.rows.Retry(r.T.Context(), r.DB, "m1") },
			[]string{"m1"}},
		"not stored, done": {false, func(r *receiver) error { return r.rows.MarkDone(r.T.Context(), r.DB, "m1") }, nil},
		"not stored, retry": {false, func(r *receiver) error { return r.rows.Retry(r.T.Context(), r.DB, "m1") },
			[]string{"m1"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, m := newReceiver(t, pending.Options{Poll: time.Millisecond}), &mailbox{}
			r.started()
			if c.stored {
				r.once(m.send())
			}
			if err := c.decide(r); !errors.Is(err, pending.ErrUnderWay) {
				t.Fatalf("decided while it is under way: %v", err)
			}
			r.overdue()
			if p := r.pending(pending.Doubtful); p.Stored != c.stored || p.Error == "" {
				t.Errorf("pending is %+v", p)
			}
			m.want(t)
			receivertest.Must(t, c.decide(r))
			if c.stored {
				r.resume(m.send())
			}
			r.once(m.send())
			m.want(t, c.sent...)
			r.WantRows(0, 1)
			r.wantNothingPending()
			if err := c.decide(r); !errors.Is(err, pending.ErrNotPending) {
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
		"done":                     {[]any{pending.Happened}, nil},
		"not done":                 {[]any{pending.DidNotHappen}, []string{"m1"}},
		"first unknown, then done": {[]any{pending.Unknown, errSMTP, pending.Happened}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := &mailbox{}
			verdicts := c.verdicts
			r := newReceiver(t, pending.Options{Poll: time.Millisecond, MinDelay: time.Millisecond, MaxDelay: time.Millisecond,
				FindOut: func(_ context.Context, p pending.Message) (pending.Answer, error) {
					if p.Key != "m1" || p.Delivery.MessageId != "m1" || p.State != pending.Doubtful {
						t.Errorf("asked about %+v", p)
					}
					next := verdicts[0]
					verdicts = verdicts[1:]
					if err, failed := next.(error); failed {
						return pending.Happened, err
					}
					return next.(pending.Answer), nil
				}})
			r.once(m.send(errSMTP))
			r.until("nothing is pending", nothing, 1, func(ctx context.Context) error { return r.effects.Resume(ctx, r.DB, m.send()) })
			m.want(t, append([]string{"m1"}, c.sent...)...)
			if len(verdicts) > 0 {
				t.Errorf("not asked: %v", verdicts)
			}
		})
	}
}

func TestResumeGivesUpAfterItsAttemptsAndAnOperatorMayStartAgain(t *testing.T) {
	r, m := newReceiver(t, pending.Options{Attempts: 2, Poll: time.Millisecond, MinDelay: time.Millisecond}), &mailbox{}
	notDone := pending.NotDone(errSMTP)
	r.once(m.send(errSMTP))
	receivertest.Must(t, r.rows.Retry(t.Context(), r.DB, "m1"))
	r.resume(m.send(notDone, notDone))
	if p := r.pending(pending.Failed); p.Attempts != 2 || p.Error != errSMTP.Error() {
		t.Errorf("pending is %+v", p)
	}
	m.want(t, "m1", "m1", "m1")
	r.once(m.send()) // the message comes again, and is in the inbox already
	m.want(t, "m1", "m1", "m1")
	receivertest.Must(t, r.rows.Retry(t.Context(), r.DB, "m1"))
	r.resume(m.send())
	m.want(t, "m1", "m1", "m1", "m1")
	r.wantNothingPending()
}

func TestAResumedMessageWhoseProcessDiesIsDoubtfulAgain(t *testing.T) {
	r, m := newReceiver(t, pending.Options{Poll: time.Millisecond}), &mailbox{}
	r.once(m.send(errSMTP))
	receivertest.Must(t, r.rows.Retry(t.Context(), r.DB, "m1"))
	var worker sync.WaitGroup
	worker.Go(func() {
		_ = r.effects.Resume(t.Context(), r.DB, func(ctx context.Context, d amqp.Delivery) error {
			_ = m.send()(ctx, d)
			receivertest.Goexit()
			return nil
		})
	})
	worker.Wait()
	r.pending(pending.Started)
	r.overdue()
	r.resume(m.send())
	m.want(t, "m1", "m1")
	if p := r.pending(pending.Doubtful); !p.Stored || p.Attempts != 1 {
		t.Errorf("pending is %+v", p)
	}
}

// An effect gets its own copy of the body: its changes to it are not stored.
func TestAnEffectDoesNotChangeTheStoredMessage(t *testing.T) {
	r := newReceiver(t, pending.Options{})
	d := r.Delivery("m1")
	d.Body = []byte("body")
	r.addWorker(pending.WorkerOptions{})
	receivertest.Must(t, r.worker.Accept(t.Context(), r.DB, d))
	r.resume(func(_ context.Context, d amqp.Delivery) error {
		clear(d.Body)
		return errSMTP
	})
	if p := r.pending(pending.Doubtful); string(p.Delivery.Body) != "body" {
		t.Errorf("stored %q", p.Delivery.Body)
	}
}
