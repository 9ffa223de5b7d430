package pending_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

// A mailbox counts e-mails, like an outside system.
type mailbox struct {
	mu   sync.Mutex
	sent []string
}

// send returns an effect that sends an e-mail and then succeeds or fails.
func (m *mailbox) send(errs ...error) pending.Effect {
	return func(_ context.Context, d amqp.Delivery) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.sent = append(m.sent, d.MessageId)
		if len(errs) == 0 {
			return nil
		}
		err := errs[0]
		errs = errs[1:]
		return err
	}
}

func (m *mailbox) want(t *testing.T, want ...string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Equal(m.sent, want) {
		t.Errorf("sent %q, want %q", m.sent, want)
	}
}

var errSMTP = errors.New("connection lost after DATA")

func (r *receiver) once(effect pending.Effect) {
	r.T.Helper()
	receivertest.Must(r.T, r.effects.AtMostOnce(r.T.Context(), r.DB, r.Delivery("m1"), effect))
}

// pending returns the only pending message, and checks its state.
func (r *receiver) pending(state pending.State) pending.Message {
	r.T.Helper()
	counts, err := r.rows.Count(r.T.Context(), r.DB)
	receivertest.Must(r.T, err)
	found, err := r.rows.List(r.T.Context(), r.DB, state, "", 10)
	receivertest.Must(r.T, err)
	if len(found) != 1 || len(counts) != 1 || counts[state] != 1 {
		r.T.Fatalf("%d messages are %s, want the only one; all are %v", len(found), state, counts)
	}
	return found[0]
}

func (r *receiver) wantNothingPending() {
	r.T.Helper()
	if counts, err := r.rows.Count(r.T.Context(), r.DB); err != nil || len(counts) > 0 {
		r.T.Errorf("pending are %v, %v", counts, err)
	}
}

// patience bounds every wait; a failure is reported after it.
const patience = 3 * time.Minute

func (r *receiver) eventually(what string, holds func() bool) {
	r.T.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			counts, err := r.rows.Count(r.T.Context(), r.DB)
			r.T.Fatalf("still not true: %s; pending are %v (%v), stats %+v, %d connections in use; the log:\n%s",
				what, counts, err, r.rows.Stats(), r.DB.Stats().InUse, r.Log)
		}
	}
}

func TestAnEffectThatIsDoneIsNotRepeated(t *testing.T) {
	r, m := newReceiver(t, pending.Options{}), &mailbox{}
	r.once(func(ctx context.Context, d amqp.Delivery) error {
		if p := r.pending(pending.Started); p.Key != "m1" || p.Stored {
			t.Errorf("while the effect runs, %+v is pending", p)
		}
		r.WantSaid()
		return m.send()(ctx, d)
	})
	r.once(m.send())
	m.want(t, "m1")
	r.WantSaid("ack 1", "ack 2")
	r.WantRows(0, 1)
	r.wantNothingPending()
	r.wantStats(idempotency.Stats{Handled: 1, Duplicates: 1})
}

func TestAnEffectThatEndsUnclearlyIsDoubtfulAndNotRepeated(t *testing.T) {
	for name, effect := range map[string]pending.Effect{
		"error": func(context.Context, amqp.Delivery) error { return errSMTP },
		"panic": func(context.Context, amqp.Delivery) error { panic(errSMTP) },
		"time": func(ctx context.Context, _ amqp.Delivery) error {
			<-ctx.Done()
			return errors.Join(context.Cause(ctx), errSMTP)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, m := newReceiver(t, pending.Options{EffectTimeout: 10 * time.Millisecond, DeadLetterExchange: true}), &mailbox{}
			r.once(effect)
			r.once(m.send())
			m.want(t)
			p := r.pending(pending.Doubtful)
			if p.Key != "m1" || !p.Stored || p.Delivery.RoutingKey != "orders" || !strings.Contains(p.Error, errSMTP.Error()) || p.Attempts != 1 {
				t.Errorf("pending is %+v", p)
			}
			r.WantSaid("ack 1", "ack 2")
			r.wantStats(idempotency.Stats{Doubtful: 2})
			if !strings.Contains(r.Log.String(), errSMTP.Error()) {
				t.Error("the log does not name the reason")
			}
		})
	}
}

func TestAnEffectThatWasNotDoneIsTriedAgainAndThenDeadLettered(t *testing.T) {
	notDone := pending.NotDone(errSMTP)
	for _, c := range []struct {
		errs []error
		sent []string
	}{
		{[]error{notDone, notDone, notDone}, []string{"m1", "m1", "m1"}},
		{[]error{fmt.Errorf("send: %w", pending.NotDone(backoff.Permanent(errSMTP)))}, []string{"m1"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, m := newReceiver(t, pending.Options{Attempts: 3, DeadLetterExchange: true}), &mailbox{}
			r.once(m.send(c.errs...))
			m.want(t, c.sent...)
			r.WantSaid("reject 1")
			r.WantRows(0, 0)
			r.wantNothingPending()

			r.once(m.send(notDone)) // put back from the dead queue
			r.WantSaid("reject 1", "ack 2")
			r.WantRows(0, 1)
			r.wantNothingPending()
			r.wantStats(idempotency.Stats{Handled: 1, DeadLettered: 1, FailedAttempts: uint64(len(c.errs) + 1)})
		})
	}
}

func TestARedeliveryDuringTheEffectIsKeptAndTheWorkerResolvesIt(t *testing.T) {
	for name, c := range map[string]struct {
		ends error
		sent []string
	}{
		"done":     {nil, []string{"m1"}},
		"not done": {pending.NotDone(errSMTP), []string{"m1", "m1"}}, // the second by Resume
	} {
		t.Run(name, func(t *testing.T) {
			r, m := newReceiver(t, pending.Options{Poll: time.Millisecond, MinDelay: time.Millisecond}), &mailbox{}
			r.once(func(ctx context.Context, d amqp.Delivery) error {
				r.once(m.send()) // the channel was lost meanwhile
				m.want(t)
				if p := r.pending(pending.Started); !p.Stored {
					t.Error("acked, and not stored")
				}
				return m.send(c.ends)(ctx, d)
			})
			if c.ends != nil {
				if p := r.pending(pending.Ready); !p.Stored || p.Error != errSMTP.Error() {
					t.Errorf("pending is %+v", p)
				}
				r.resume(m.send())
			}
			m.want(t, c.sent...)
			r.WantSaid("ack 2", "ack 1")
			r.WantRows(0, 1)
			r.wantNothingPending()
		})
	}
}

// The inbox must also record that an effect was not done, as the package comment says. Until then
// the effect is not repeated, and the message is stored for the operator.
func TestADatabaseThatGoesAwayBehindTheEffectLeavesTheMessageDoubtful(t *testing.T) {
	for name, c := range map[string]struct {
		ends error
		sent []string
	}{
		"done":     {nil, []string{"m1"}},
		"not done": {pending.NotDone(errSMTP), nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, m := newReceiver(t, pending.Options{DeadLetterExchange: true}), &mailbox{}
				start := time.Now()
				err := r.effects.AtMostOnce(t.Context(), r.DB, r.Delivery("m1"), func(ctx context.Context, d amqp.Delivery) error {
					r.Faults.OnCommit = func(func() error) error { return receivertest.ErrNetwork }
					if c.ends != nil {
						return c.ends
					}
					return m.send()(ctx, d)
				})
				if !errors.Is(err, idempotency.ErrHandedBack) || !errors.Is(err, receivertest.ErrNetwork) {
					t.Errorf("got %v", err)
				}
				if held := time.Since(start); held != 6*time.Minute {
					t.Errorf("tried for %v", held)
				}
				r.WantSaid("requeue 1")
				r.Faults.OnCommit = nil
				r.pending(pending.Started)
				r.once(m.send())
				m.want(t, c.sent...)
				r.WantSaid("requeue 1", "ack 2")
				r.overdue()
				if p := r.pending(pending.Doubtful); !p.Stored {
					t.Errorf("pending is %+v", p)
				}
			})
		})
	}
}

func TestACommitOfAnEffectsStartOrEndMayFail(t *testing.T) {
	for name, fault := range map[string]func(n int, commit func() error) error{
		// The start is committed without an answer: the same worker must recognize it as its own.
		"the answer to the start is lost": func(n int, commit func() error) error {
			if n == 1 {
				return errors.Join(commit(), receivertest.ErrNetwork)
			}
			return commit()
		},
		"the end fails for some time": func(n int, commit func() error) error {
			if n > 1 && n < 10 {
				return receivertest.ErrNetwork
			}
			return commit()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, m := newReceiver(t, pending.Options{}), &mailbox{}
				n := 0
				r.Faults.OnCommit = func(commit func() error) error {
					n++
					return fault(n, commit)
				}
				r.once(m.send())
				m.want(t, "m1")
				r.WantSaid("ack 1")
				r.wantNothingPending()
				r.wantStats(idempotency.Stats{Handled: 1})
			})
		})
	}
}

func TestManyCopiesAtOnceHaveOneEffect(t *testing.T) {
	const messages, copies = 10, 5
	r, m := newReceiver(t, pending.Options{}), &mailbox{}
	var consumers sync.WaitGroup
	for c := range messages * copies {
		consumers.Go(func() {
			err := r.effects.AtMostOnce(t.Context(), r.DB, r.Delivery(fmt.Sprint("m", c%messages)), m.send())
			if err != nil {
				t.Error(err)
			}
		})
	}
	consumers.Wait()
	slices.Sort(m.sent)
	if len(slices.Compact(slices.Clone(m.sent))) != messages || len(m.sent) != messages {
		t.Errorf("sent %q", m.sent)
	}
	r.wantNothingPending()
}

func TestAnEffectThatOutlastsAShutdownAndItsDeliveryIsRecordedAllTheSame(t *testing.T) {
	for name, c := range map[string]struct {
		ends error
		want idempotency.Stats
	}{
		"done":     {nil, idempotency.Stats{Handled: 1}},
		"in doubt": {errSMTP, idempotency.Stats{Doubtful: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, m := newReceiver(t, pending.Options{}), &mailbox{}
				ctx, stop := context.WithCancel(t.Context())
				receivertest.Must(t, r.effects.AtMostOnce(ctx, r.DB, r.Delivery("m1"), func(ctx context.Context, d amqp.Delivery) error {
					stop()
					receivertest.Must(t, ctx.Err())
					<-time.After(time.Hour)
					return m.send(c.ends)(ctx, d)
				}))
				r.WantSaid("ack 1")
				r.wantStats(c.want)
			})
		})
	}
}

// A Consumer stops, and its handlers have an hour left; or a loop of the user's own stops.
func TestAStopWhileTheDatabaseIsAwayLeavesTheMessageUnacked(t *testing.T) {
	for name, handle := range map[string]func(ctx context.Context, r *receiver) error{
		"AtMostOnce": func(ctx context.Context, r *receiver) error {
			return r.effects.AtMostOnce(ctx, r.DB, r.Delivery("m1"), new(mailbox).send())
		},
		"Accept": func(ctx context.Context, r *receiver) error { return r.worker.Accept(ctx, r.DB, r.Delivery("m1")) },
	} {
		for _, consumer := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s in a Consumer %t", name, consumer), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newReceiver(t, pending.Options{Hold: 24 * time.Hour})
					r.addWorker(pending.WorkerOptions{Hold: 24 * time.Hour})
					r.Inbox.Failures.Store(1 << 30)
					stopping, stop := context.WithCancel(t.Context())
					time.AfterFunc(time.Minute, stop)
					ctx := stopping
					if consumer {
						handling, cancel := context.WithTimeout(t.Context(), time.Hour)
						defer cancel()
						ctx = engine.WithSession(handling, &engine.Session{Stopping: stopping})
					}
					begun := time.Now()
					err := handle(ctx, r)
					if !errors.Is(err, idempotency.ErrLeftUnacked) || time.Since(begun) != time.Minute {
						t.Errorf("after %v: %v, must be left unacked after a minute", time.Since(begun), err)
					}
					r.WantSaid()
					if left := r.effects.Stats().LeftUnacked + r.worker.Stats().LeftUnacked; left != 1 {
						t.Errorf("%d messages were left unacked, must be 1", left)
					}
				})
			})
		}
	}
}

// An effect may end its goroutine, like FailNow of a test.
func TestAnEffectThatEndsItsGoroutineHandsTheMessageBack(t *testing.T) {
	r := newReceiver(t, pending.Options{})
	var consumer sync.WaitGroup
	consumer.Go(func() {
		err := r.effects.AtMostOnce(t.Context(), r.DB, r.Delivery("m1"), func(context.Context, amqp.Delivery) error {
			receivertest.Goexit()
			return nil
		})
		t.Errorf("the call came back: %v", err)
	})
	consumer.Wait()
	r.WantSaid("requeue 1")
	r.WantRows(0, 1)
	r.wantStats(idempotency.Stats{HandedBack: 1})
	r.addWorker(pending.WorkerOptions{})
	r.accept("m2") // no transaction is open
	if log := r.Log.String(); !strings.Contains(log, "runtime.Goexit") || !strings.Contains(log, "message_id=m1") {
		t.Errorf("the log is\n%s", log)
	}
}
