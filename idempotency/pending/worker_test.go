package pending_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
	"github.com/twoqueue/twoqueue/idempotency/pending"
)

func (r *receiver) accept(ids ...string) {
	r.T.Helper()
	for _, id := range ids {
		receivertest.Must(r.T, r.worker.Accept(r.T.Context(), r.DB, r.Delivery(id)))
	}
}

// until runs several calls in parallel until done is true.
func (r *receiver) until(what string, done func(counts map[pending.State]int64) bool, several int, run func(ctx context.Context) error) {
	r.T.Helper()
	ctx, stop := context.WithCancel(r.T.Context())
	var all sync.WaitGroup
	for range several {
		all.Go(func() {
			if err := run(ctx); err != nil {
				r.T.Error(err)
			}
		})
	}
	r.eventually(what, func() bool {
		counts, err := r.rows.Count(ctx, r.DB)
		return err == nil && done(counts)
	})
	stop()
	all.Wait()
}

// work lets workers work until done is true.
func (r *receiver) work(workers int, fn pending.Handler, what string, done func(counts map[pending.State]int64) bool) {
	r.T.Helper()
	r.until(what, done, workers, func(ctx context.Context) error { return r.worker.Work(ctx, r.DB, fn) })
}

func nothing(counts map[pending.State]int64) bool { return len(counts) == 0 }

func allFailed(counts map[pending.State]int64) bool {
	return counts[pending.Ready] == 0 && counts[pending.Failed] > 0
}

func placeStored(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
	return receivertest.PlaceOrder(d.MessageId)(ctx, tx)
}

// quick is for tests in which Work does not pause.
var quick = pending.WorkerOptions{Poll: time.Millisecond, MinDelay: time.Millisecond, MaxDelay: time.Millisecond}

func TestAnAcceptedMessageIsStoredBeforeTheAckAndADuplicateEndsThere(t *testing.T) {
	r := newWorker(t, quick)
	r.Channel.OnAck = func() { r.WantRows(0, 1) }
	d := r.Delivery("m1")
	d.Headers, d.ReplyTo, d.Timestamp, d.Body = amqp.Table{"n": int32(7)}, "replies", time.Unix(1700000000, 0), []byte("body")
	receivertest.Must(t, r.worker.Accept(t.Context(), r.DB, d))
	r.accept("m1")
	r.Channel.OnAck = nil
	r.WantSaid("ack 1", "ack 2")
	d.Acknowledger, d.DeliveryTag = nil, 0 // the fields of this one delivery
	if p := r.pending(pending.Ready); p.Key != "m1" || !p.Stored || p.Attempts != 0 || !reflect.DeepEqual(p.Delivery, d) {
		t.Errorf("pending is %+v", p)
	}
	r.wantStats(idempotency.Stats{Kept: 1, Duplicates: 1})
	r.work(1, placeStored, "nothing is left", nothing)
	r.accept("m1")
	r.WantRows(1, 1)
	r.wantNothingPending()
}

func TestAttemptsAtAStoredMessageAreBoundedAndItsErrorIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		fn   pending.Handler
		runs int
		says string
	}{
		"error":     {func(context.Context, *sql.Tx, amqp.Delivery) error { return receivertest.ErrHandler }, 3, receivertest.ErrHandler.Error()},
		"panic":     {func(context.Context, *sql.Tx, amqp.Delivery) error { panic("no index") }, 3, "panic: no index"},
		"permanent": {func(context.Context, *sql.Tx, amqp.Delivery) error { return backoff.Permanent(receivertest.ErrHandler) }, 1, receivertest.ErrHandler.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			opts := quick
			opts.Attempts = 3
			r := newWorker(t, opts)
			r.accept("m1")
			runs := 0
			r.work(2, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
				runs++
				if err := placeStored(ctx, tx, d); err != nil {
					return err
				}
				return c.fn(ctx, tx, d)
			}, "all are failed", allFailed)
			p := r.pending(pending.Failed)
			if runs != c.runs || p.Attempts != c.runs || !strings.Contains(p.Error, c.says) || p.Delivery.MessageId != "m1" {
				t.Errorf("after %d runs %+v is pending", runs, p)
			}
			r.WantRows(0, 1)

			receivertest.Must(t, r.rows.Retry(t.Context(), r.DB, "m1"))
			r.work(1, placeStored, "nothing is left", nothing)
			r.WantRows(1, 1)
		})
	}
}

// Another worker takes a message whose worker dies, after its lease. A message that kills its
// workers each time ends as failed.
func TestAMessageWhoseWorkerDiesIsTakenByAnother(t *testing.T) {
	for attempts, want := range map[int]int{1: 1, 2: 2} {
		opts := quick
		opts.Attempts = attempts
		r := newWorker(t, opts)
		r.accept("m1", "m2")
		var worker sync.WaitGroup
		worker.Go(func() {
			_ = r.worker.Work(t.Context(), r.DB, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
				receivertest.Must(t, placeStored(ctx, tx, d))
				receivertest.Goexit()
				return nil
			})
		})
		worker.Wait()
		r.WantRows(0, 2)
		r.work(1, placeStored, "the other one is handled", func(counts map[pending.State]int64) bool { return counts[pending.Ready] == 1 })
		if p := r.pending(pending.Ready); p.Key != "m1" || p.Attempts != 1 {
			t.Errorf("while the lease lasts, %+v is pending", p)
		}
		r.overdue()
		r.work(1, placeStored, "nothing is ready", func(counts map[pending.State]int64) bool { return counts[pending.Ready] == 0 })
		r.WantRows(want, 2)
		if want == 2 {
			r.wantNothingPending()
		} else if p := r.pending(pending.Failed); !strings.Contains(p.Error, "recorded no result") {
			t.Errorf("pending is %+v", p)
		}
	}
}

// The lease is over and another worker has taken the message: the effects of the first one must not
// be committed.
func TestAWorkerThatHasLostItsLeaseCommitsNothing(t *testing.T) {
	r := newWorker(t, quick)
	r.accept("m1")
	r.Inbox.OnRemove = func() { // after the lease was taken, before the row is deleted
		r.Exec(`UPDATE bridge_inbox_pending SET run = 'another', state = 'failed'`)
	}
	r.work(1, placeStored, "the other worker is logged", func(map[pending.State]int64) bool {
		return strings.Contains(r.Log.String(), "another worker has the message")
	})
	r.WantRows(0, 1)
	r.pending(pending.Failed) // the state that the other worker has written
}

// The reason must be recorded too, even if that takes longer than the lease.
func TestAHandlerThatOutlastsItsLeaseHasFailedHoweverSlowTheDatabaseIs(t *testing.T) {
	t.Parallel()
	opts := quick
	opts.Lease, opts.Attempts = time.Second, 1
	r := newWorker(t, opts)
	r.accept("m1")
	r.DB.SetMaxIdleConns(0) // each transaction opens a connection
	var slow atomic.Bool
	r.Faults.OnConnect = func() error {
		if slow.Load() {
			time.Sleep(opts.Lease / 2)
		}
		return nil
	}
	r.work(1, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		receivertest.Must(t, placeStored(ctx, tx, d))
		<-ctx.Done()
		slow.Store(true)
		return nil // the handler returns no error
	}, "it is failed", allFailed)
	if p := r.pending(pending.Failed); !strings.Contains(p.Error, "Options.Lease") {
		t.Errorf("pending is %+v", p)
	}
	r.WantRows(0, 1)
}

func TestAShutdownFreesTheMessageAndIsNoFailedAttempt(t *testing.T) {
	opts := quick
	opts.Drain = -1
	r := newWorker(t, opts)
	r.accept("m1")
	ctx, stop := context.WithCancel(t.Context())
	err := r.worker.Work(ctx, r.DB, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		stop()
		return errors.Join(placeStored(context.WithoutCancel(ctx), tx, d), ctx.Err())
	})
	if err != nil {
		t.Error(err)
	}
	if p := r.pending(pending.Ready); p.Attempts != 0 {
		t.Errorf("pending is %+v", p)
	}
	r.WantRows(0, 1)
	r.work(1, placeStored, "nothing is left", nothing)
	r.WantRows(1, 1)
}

// A commit whose answer was lost is not repeated either.
func TestAFailingDatabaseDoesNotCountAgainstAStoredMessage(t *testing.T) {
	opts := quick
	opts.Attempts = 1
	r := newWorker(t, opts)
	r.accept("m1")
	runs := 0
	r.work(1, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		if runs++; runs < 4 {
			r.Faults.KillAll()
			return placeStored(ctx, tx, d)
		}
		lost := false
		r.Faults.OnCommit = func(commit func() error) error {
			err := commit()
			if !lost {
				lost = true
				return errors.Join(err, receivertest.ErrNetwork)
			}
			return err
		}
		return placeStored(ctx, tx, d)
	}, "nothing is left", nothing)
	r.WantRows(1, 1)
}

// A message whose handler loses the connection each time fails if other messages are handled
// meanwhile.
func TestAStoredMessageThatLosesTheConnectionEachTimeFails(t *testing.T) {
	opts := quick
	opts.Attempts = 3
	r := newWorker(t, opts)
	r.accept("poison")
	var runs atomic.Int64
	r.work(1, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		if d.MessageId != "poison" {
			return placeStored(ctx, tx, d)
		}
		runs.Add(1)
		r.Faults.KillAll()
		return placeStored(ctx, tx, d)
	}, "it is failed", func(counts map[pending.State]int64) bool {
		if counts[pending.Failed] == 0 {
			r.accept(fmt.Sprint("other ", runs.Load()))
		}
		return allFailed(counts)
	})
	if p := r.pending(pending.Failed); p.Key != "poison" || p.Attempts != 3 {
		t.Errorf("after %d runs %+v is pending", runs.Load(), p)
	}
}

// A statement or a COMMIT that gets no answer until the lease is over is not the handler's failure.
func TestADatabaseThatIsSilentUntilTheLeaseIsOverDoesNotCountAgainstAStoredMessage(t *testing.T) {
	for _, silent := range []string{"at a statement", "at the COMMIT"} {
		t.Run(silent, func(t *testing.T) {
			t.Parallel()
			opts := quick
			opts.Lease, opts.Attempts = time.Second, 1
			r := newWorker(t, opts)
			r.accept("m1")
			r.DB.SetMaxIdleConns(0) // each transaction opens a connection
			var refused atomic.Int64
			r.Faults.OnConnect = func() error {
				if refused.Add(-1) >= 0 {
					return receivertest.ErrNetwork
				}
				return nil
			}
			var leased atomic.Pointer[context.Context]
			r.Faults.OnCommit = func(commit func() error) error {
				if ctx := leased.Load(); ctx != nil && (*ctx).Err() == nil {
					<-(*ctx).Done()
					return receivertest.ErrNetwork
				}
				return commit()
			}
			runs := 0
			r.work(1, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
				switch runs++; {
				case runs == 1 && silent == "at a statement":
					<-ctx.Done()
					refused.Store(receivertest.Failures)
					return ctx.Err()
				case runs == 1:
					leased.Store(&ctx)
				}
				return placeStored(ctx, tx, d)
			}, "nothing is left", nothing)
			r.WantRows(1, 1)
		})
	}
}

// Such a COMMIT may be the message's fault or the database's, so the rule for lost connections decides.
// The message's row shows whether the COMMIT has succeeded.
func TestAMessageWhoseCommitOutlastsEachLeaseFails(t *testing.T) {
	for name, c := range map[string]struct {
		others  []string
		commits bool // the second COMMIT succeeds
		runs    int
		want    idempotency.Stats
	}{
		"others are handled":                          {[]string{"m2"}, false, 2, idempotency.Stats{Kept: 2, Handled: 1, FailedAttempts: 1}},
		"no others, the database answers for an hour": {nil, false, 21, idempotency.Stats{Kept: 1, FailedAttempts: 1}},
		"it succeeds":                                 {[]string{"m2"}, true, 2, idempotency.Stats{Kept: 2, Handled: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := quick
				opts.Poll, opts.Lease, opts.Attempts = time.Minute, 4*time.Minute, 1
				r := newWorker(t, opts)
				r.accept(append([]string{"m1"}, c.others...)...)
				r.Exec(`UPDATE bridge_inbox_pending SET due_ms = CASE message_key WHEN 'm1' THEN 1 ELSE 2 END`) // m1 comes first, then m2; the accepts and the first run may take less than a millisecond
				runs, leased := 0, context.Context(nil)
				r.Faults.OnCommit = func(commit func() error) (err error) {
					if leased == nil {
						return commit()
					}
					if c.commits && runs == 2 {
						err = commit()
					}
					<-leased.Done()
					leased = nil
					return errors.Join(err, receivertest.ErrNetwork)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
				defer cancel()
				receivertest.Must(t, r.worker.Work(ctx, r.DB, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
					if d.MessageId == "m1" {
						runs++
						leased = ctx
					}
					return placeStored(ctx, tx, d)
				}))
				if runs != c.runs {
					t.Errorf("%d runs, want %d", runs, c.runs)
				}
				r.wantStats(c.want)
				if c.commits {
					r.WantRows(2, 2)
					r.wantNothingPending()
					if log := r.Log.String(); strings.Contains(log, "message failed") {
						t.Errorf("the log is\n%s", log)
					}
				} else if p := r.pending(pending.Failed); p.Key != "m1" || p.Attempts != 1 || !strings.Contains(p.Error, "commit") {
					t.Errorf("pending is %+v", p)
				}
			})
		})
	}
}

// Its error is in the log, as no row has it.
func TestAnAttemptWhoseRowAnotherWorkerHasTakenIsLoggedAndCounted(t *testing.T) {
	t.Parallel()
	opts := quick
	opts.Lease = time.Second
	r := newWorker(t, opts)
	r.accept("m1")
	r.DB.SetMaxIdleConns(0) // each transaction opens a connection
	var taken, over atomic.Bool
	r.Faults.OnBegin = func(sqldriver.TxOptions) {
		if over.Load() && taken.CompareAndSwap(false, true) { // before the result is recorded
			r.Exec(`UPDATE bridge_inbox_pending SET run = 'another', state = 'failed'`)
		}
	}
	r.work(1, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		<-ctx.Done()
		over.Store(true)
		return receivertest.ErrHandler
	}, "it is logged", func(map[pending.State]int64) bool {
		return strings.Contains(r.Log.String(), "its row was removed or taken over")
	})
	if log := r.Log.String(); !strings.Contains(log, receivertest.ErrHandler.Error()) || strings.Contains(log, "message failed") {
		t.Errorf("the log is\n%s", log)
	}
	r.wantStats(idempotency.Stats{Kept: 1, FailedAttempts: 1})
}

func TestWorkWakesForAMessageThatItsOwnProcessAccepts(t *testing.T) {
	opts := quick
	opts.Poll = time.Hour
	r := newWorker(t, opts)
	r.work(1, placeStored, "it is handled", func(counts map[pending.State]int64) bool {
		if r.rows.Stats().Kept == 0 {
			r.accept("m1")
		}
		return len(counts) == 0 && r.Orders() == 1
	})
	r.WantRows(1, 1)
}

// For stored messages the pause is measured by the database's clock.
func TestRetryLaterDoesNotCountAgainstAStoredMessage(t *testing.T) {
	opts := quick
	opts.Attempts = 1
	r := newWorker(t, opts)
	r.accept("m1")
	runs := 0
	r.work(1, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		if runs++; runs < 4 {
			return idempotency.RetryLater(receivertest.ErrHandler, time.Millisecond)
		}
		return placeStored(ctx, tx, d)
	}, "nothing is left", nothing)
	r.WantRows(1, 1)
	r.wantStats(idempotency.Stats{Kept: 1, Handled: 1})
}

// At a stop the running attempt may finish, within Options.Drain.
func TestAStopLetsWorkFinishItsAttempt(t *testing.T) {
	const drain = time.Minute
	for name, c := range map[string]struct {
		takes time.Duration
		done  int
	}{
		"quick enough": {drain - time.Second, 1},
		"too slow":     {drain + time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newWorker(t, pending.WorkerOptions{Drain: drain, Lease: time.Hour})
				r.accept("m1")
				ctx, stop := context.WithCancel(t.Context())
				receivertest.Must(t, r.worker.Work(ctx, r.DB, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
					stop()
					select {
					case <-time.After(c.takes):
					case <-ctx.Done():
						return context.Cause(ctx)
					}
					return placeStored(ctx, tx, d)
				}))
				r.WantRows(c.done, 1)
				if n := r.Rows("bridge_inbox_pending"); n != 1-c.done {
					t.Errorf("%d messages are pending", n)
				}
			})
		})
	}
}
