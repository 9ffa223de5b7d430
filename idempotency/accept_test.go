package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
)

func (r *receiver) accept(ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		must(r.t, r.guard.Accept(r.t.Context(), r.db, r.delivery(id)))
	}
}

// until runs several at once until what they must come to is true.
func (r *receiver) until(what string, done func(counts map[idempotency.State]int64) bool, several int, run func(ctx context.Context) error) {
	r.t.Helper()
	ctx, stop := context.WithCancel(r.t.Context())
	var all sync.WaitGroup
	for range several {
		all.Go(func() {
			if err := run(ctx); err != nil {
				r.t.Error(err)
			}
		})
	}
	r.eventually(what, func() bool {
		counts, err := r.guard.CountPending(ctx, r.db)
		return err == nil && done(counts)
	})
	stop()
	all.Wait()
}

// work lets workers work until done is true.
func (r *receiver) work(workers int, fn idempotency.Handler, what string, done func(counts map[idempotency.State]int64) bool) {
	r.t.Helper()
	r.until(what, done, workers, func(ctx context.Context) error { return r.guard.Work(ctx, r.db, fn) })
}

func nothing(counts map[idempotency.State]int64) bool { return len(counts) == 0 }

func allFailed(counts map[idempotency.State]int64) bool {
	return counts[idempotency.Ready] == 0 && counts[idempotency.Failed] > 0
}

func placeStored(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
	return placeOrder(d.MessageId)(ctx, tx)
}

// quick is for tests in which Work shall not pause.
var quick = idempotency.Options{Poll: time.Millisecond, MinDelay: time.Millisecond, MaxDelay: time.Millisecond}

func TestAnAcceptedMessageIsStoredBeforeTheAckAndADuplicateEndsThere(t *testing.T) {
	r := newReceiver(t, quick)
	r.channel.onAck = func() { r.wantRows(0, 1) }
	d := r.delivery("m1")
	d.Headers, d.ReplyTo, d.Timestamp, d.Body = amqp.Table{"n": int32(7)}, "replies", time.Unix(1700000000, 0), []byte("body")
	must(t, r.guard.Accept(t.Context(), r.db, d))
	r.accept("m1")
	r.channel.onAck = nil
	r.wantSaid("ack 1", "ack 2")
	d.Acknowledger, d.DeliveryTag = nil, 0 // what belongs to this one delivery
	if p := r.pending(idempotency.Ready); p.Key != "m1" || !p.Stored || p.Attempts != 0 || !reflect.DeepEqual(p.Message, d) {
		t.Errorf("pending is %+v", p)
	}
	r.wantStats(idempotency.Stats{Kept: 1, Duplicates: 1})
	r.work(1, placeStored, "nothing is left", nothing)
	r.accept("m1")
	r.wantRows(1, 1)
	r.wantNothingPending()
}

func TestAttemptsAtAStoredMessageAreBoundedAndItsErrorIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		fn   idempotency.Handler
		runs int
		says string
	}{
		"error":     {func(context.Context, *sql.Tx, amqp.Delivery) error { return errHandler }, 3, errHandler.Error()},
		"panic":     {func(context.Context, *sql.Tx, amqp.Delivery) error { panic("no index") }, 3, "panic: no index"},
		"permanent": {func(context.Context, *sql.Tx, amqp.Delivery) error { return backoff.Permanent(errHandler) }, 1, errHandler.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			opts := quick
			opts.Attempts = 3
			r := newReceiver(t, opts)
			r.accept("m1")
			runs := 0
			r.work(2, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
				runs++
				if err := placeStored(ctx, tx, d); err != nil {
					return err
				}
				return c.fn(ctx, tx, d)
			}, "all are failed", allFailed)
			p := r.pending(idempotency.Failed)
			if runs != c.runs || p.Attempts != c.runs || !strings.Contains(p.Error, c.says) || p.Message.MessageId != "m1" {
				t.Errorf("after %d runs %+v is pending", runs, p)
			}
			r.wantRows(0, 1)

			must(t, r.guard.Retry(t.Context(), r.db, "m1"))
			r.work(1, placeStored, "nothing is left", nothing)
			r.wantRows(1, 1)
		})
	}
}

// A message whose worker dies is another's once its lease is over. One that kills its workers
// each time ends as failed.
func TestAMessageWhoseWorkerDies(t *testing.T) {
	for attempts, want := range map[int]int{1: 1, 2: 2} {
		opts := quick
		opts.Attempts = attempts
		r := newReceiver(t, opts)
		r.accept("m1", "m2")
		var worker sync.WaitGroup
		worker.Go(func() {
			_ = r.guard.Work(t.Context(), r.db, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
				must(t, placeStored(ctx, tx, d))
				goexit()
				return nil
			})
		})
		worker.Wait()
		r.wantRows(0, 2)
		r.work(1, placeStored, "the other one is handled", func(counts map[idempotency.State]int64) bool { return counts[idempotency.Ready] == 1 })
		if p := r.pending(idempotency.Ready); p.Key != "m1" || p.Attempts != 1 {
			t.Errorf("while the lease lasts, %+v is pending", p)
		}
		r.overdue()
		r.work(1, placeStored, "nothing is ready", func(counts map[idempotency.State]int64) bool { return counts[idempotency.Ready] == 0 })
		r.wantRows(want, 2)
		if want == 2 {
			r.wantNothingPending()
		} else if p := r.pending(idempotency.Failed); !strings.Contains(p.Error, "not heard of") {
			t.Errorf("pending is %+v", p)
		}
	}
}

// The lease has run out and another has taken the message: what the first one did
// must not be committed.
func TestAWorkerThatHasLostItsLeaseCommitsNothing(t *testing.T) {
	r := newReceiver(t, quick)
	r.accept("m1")
	r.inbox.onRemove = func() { // after the lease, before the fence
		r.exec(`UPDATE bridge_inbox_pending SET run = 'another', state = 'failed'`)
	}
	r.work(1, placeStored, "the log tells", func(map[idempotency.State]int64) bool {
		return strings.Contains(r.log.String(), "another worker has the message")
	})
	r.wantRows(0, 1)
	r.pending(idempotency.Failed) // as the other one has left it
}

// And the reason must not be lost because it takes longer to write down than the lease has
// room for.
func TestAHandlerThatOutlastsItsLeaseHasFailedHoweverSlowTheDatabaseIs(t *testing.T) {
	t.Parallel()
	opts := quick
	opts.Lease, opts.Attempts = time.Second, 1
	r := newReceiver(t, opts)
	r.accept("m1")
	r.db.SetMaxIdleConns(0) // each transaction connects
	var slow atomic.Bool
	r.faults.connect = func() error {
		if slow.Load() {
			time.Sleep(opts.Lease / 2)
		}
		return nil
	}
	r.work(1, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		must(t, placeStored(ctx, tx, d))
		<-ctx.Done()
		slow.Store(true)
		return nil // and does not even say so
	}, "it is failed", allFailed)
	if p := r.pending(idempotency.Failed); !strings.Contains(p.Error, "Options.Lease") {
		t.Errorf("pending is %+v", p)
	}
	r.wantRows(0, 1)
}

func TestAShutdownFreesTheMessageAndIsNoFailedAttempt(t *testing.T) {
	opts := quick
	opts.Drain = -1
	r := newReceiver(t, opts)
	r.accept("m1")
	ctx, stop := context.WithCancel(t.Context())
	err := r.guard.Work(ctx, r.db, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		stop()
		return errors.Join(placeStored(context.WithoutCancel(ctx), tx, d), ctx.Err())
	})
	if err != nil {
		t.Error(err)
	}
	if p := r.pending(idempotency.Ready); p.Attempts != 0 {
		t.Errorf("pending is %+v", p)
	}
	r.wantRows(0, 1)
	r.work(1, placeStored, "nothing is left", nothing)
	r.wantRows(1, 1)
}

// Nor is a commit repeated whose answer was lost.
func TestAFailingDatabaseDoesNotCountAgainstAStoredMessage(t *testing.T) {
	opts := quick
	opts.Attempts = 1
	r := newReceiver(t, opts)
	r.accept("m1")
	runs := 0
	r.work(1, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		if runs++; runs < 4 {
			r.faults.killAll()
			return placeStored(ctx, tx, d)
		}
		lost := false
		r.faults.commit = func(commit func() error) error {
			err := commit()
			if !lost {
				lost = true
				return errors.Join(err, errNetwork)
			}
			return err
		}
		return placeStored(ctx, tx, d)
	}, "nothing is left", nothing)
	r.wantRows(1, 1)
}

func TestWorkWakesForWhatItsOwnProcessAccepts(t *testing.T) {
	opts := quick
	opts.Poll = time.Hour
	r := newReceiver(t, opts)
	r.work(1, placeStored, "it is handled", func(counts map[idempotency.State]int64) bool {
		if r.guard.Stats().Kept == 0 {
			r.accept("m1")
		}
		return len(counts) == 0 && r.orders() == 1
	})
	r.wantRows(1, 1)
}
