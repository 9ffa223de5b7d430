package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
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
		if err := r.guard.Accept(r.t.Context(), r.db, r.delivery(id)); err != nil {
			r.t.Fatal(err)
		}
	}
}

// work lets workers work until done is true.
func (r *receiver) work(workers int, fn idempotency.Handler, what string, done func(counts map[idempotency.State]int64) bool) {
	r.t.Helper()
	ctx, stop := context.WithCancel(r.t.Context())
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			if err := r.guard.Work(ctx, r.db, fn); err != nil {
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
	r.accept("m1", "m1")
	r.channel.onAck = nil
	r.wantSaid("ack 1", "ack 2")
	if p := r.pending(idempotency.Ready); p.Key != "m1" || !p.Stored || p.Attempts != 0 {
		t.Errorf("pending is %+v", p)
	}
	r.wantStats(idempotency.Stats{Kept: 1, Duplicates: 1})
	r.work(1, placeStored, "nothing is left", nothing)
	r.accept("m1")
	r.wantRows(1, 1)
	r.wantNothingPending()
}

func TestAcceptedMessagesAreHandledOnceEachInTheirOrder(t *testing.T) {
	r := newReceiver(t, quick)
	var ids []string
	for n := range 20 {
		ids = append(ids, fmt.Sprintf("m%02d", 20-n))
		r.accept(ids[n], ids[n])
		r.exec(`UPDATE bridge_inbox_pending SET due_ms = ? WHERE message_key = ?`, n, ids[n]) // a millisecond apart
	}
	var handled []string
	r.work(1, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		handled = append(handled, d.MessageId)
		return placeStored(ctx, tx, d)
	}, "nothing is left", nothing)
	if !slices.Equal(handled, ids) {
		t.Errorf("handled %q, accepted %q", handled, ids)
	}
	r.wantRows(20, 20)
}

func TestManyWorkersHandleEachMessageOnce(t *testing.T) {
	const messages = 30
	r := newReceiver(t, quick)
	for n := range messages {
		r.accept(fmt.Sprint("m", n))
	}
	var mu sync.Mutex
	runs := make(map[string]int)
	r.work(4, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		mu.Lock()
		runs[d.MessageId]++
		first := runs[d.MessageId] == 1
		mu.Unlock()
		if err := placeStored(ctx, tx, d); err != nil {
			return err
		}
		if first && strings.HasSuffix(d.MessageId, "3") {
			return errHandler
		}
		return nil
	}, "nothing is left", nothing)
	r.wantRows(messages, messages)
	if stats := r.guard.Stats(); stats.Handled != messages || stats.FailedAttempts != 3 {
		t.Errorf("stats are %+v", stats)
	}
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

			if err := r.guard.Retry(t.Context(), r.db, "m1"); err != nil {
				t.Fatal(err)
			}
			r.work(1, placeStored, "nothing is left", nothing)
			r.wantRows(1, 1)
		})
	}
}

func TestAWorkerThatDiesLosesItsLease(t *testing.T) {
	opts := quick
	opts.Lease = time.Second
	r := newReceiver(t, opts)
	r.accept("m1")
	began := time.Now() // before the lease does
	var worker sync.WaitGroup
	worker.Go(func() {
		_ = r.guard.Work(t.Context(), r.db, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
			if err := placeStored(ctx, tx, d); err != nil {
				t.Error(err)
			}
			goexit()
			return nil
		})
	})
	worker.Wait()
	r.wantRows(0, 1)
	if p := r.pending(idempotency.Ready); p.Attempts != 1 {
		t.Errorf("pending is %+v", p)
	}
	r.work(2, placeStored, "nothing is left", nothing)
	if waited := time.Since(began); waited < opts.Lease {
		t.Errorf("taken after %v", waited)
	}
	r.wantRows(1, 1)
}

// A message that kills its workers each time ends as failed, too.
func TestAMessageThatKillsItsWorkersIsFailed(t *testing.T) {
	opts := quick
	opts.Lease, opts.Attempts = time.Second, 1
	r := newReceiver(t, opts)
	r.accept("m1", "m2")
	var worker sync.WaitGroup
	worker.Go(func() {
		_ = r.guard.Work(t.Context(), r.db, func(context.Context, *sql.Tx, amqp.Delivery) error {
			goexit()
			return nil
		})
	})
	worker.Wait()
	r.work(1, placeStored, "one is failed and the other handled", func(counts map[idempotency.State]int64) bool {
		return counts[idempotency.Ready] == 0
	})
	if p := r.pending(idempotency.Failed); p.Key != "m1" || !strings.Contains(p.Error, "not heard of") {
		t.Errorf("pending is %+v", p)
	}
	r.wantRows(1, 2)
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

func TestAHandlerThatOutlastsItsLeaseHasFailed(t *testing.T) {
	opts := quick
	opts.Lease, opts.Attempts = time.Second, 1
	r := newReceiver(t, opts)
	r.accept("m1")
	r.work(1, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		<-ctx.Done()
		return nil // and does not even say so
	}, "it is failed", allFailed)
	if p := r.pending(idempotency.Failed); !strings.Contains(p.Error, "Options.Lease") {
		t.Errorf("pending is %+v", p)
	}
	r.wantRows(0, 1)
}

// The reason must not be lost because it takes longer to write down than the lease has
// room for.
func TestAFailureIsRecordedHoweverSlowTheDatabaseIs(t *testing.T) {
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
		<-ctx.Done()
		slow.Store(true)
		return errHandler
	}, "it is failed", allFailed)
	if p := r.pending(idempotency.Failed); !strings.Contains(p.Error, "Options.Lease") {
		t.Errorf("pending is %+v", p)
	}
	r.wantRows(0, 1)
}

func TestAShutdownFreesTheMessageAndIsNoFailedAttempt(t *testing.T) {
	r := newReceiver(t, quick)
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

func TestAFailingDatabaseDoesNotCountAgainstAStoredMessage(t *testing.T) {
	opts := quick
	opts.Attempts = 1
	r := newReceiver(t, opts)
	r.accept("m1")
	runs := 0
	r.work(1, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
		if runs++; runs < 4 {
			r.faults.killAll()
		}
		return placeStored(ctx, tx, d)
	}, "nothing is left", nothing)
	r.wantRows(1, 1)
}

func TestACommitWhoseAnswerIsLostIsNotRepeatedByWork(t *testing.T) {
	r := newReceiver(t, quick)
	r.accept("m1")
	r.work(1, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
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

func TestAMessageThatIsTooLargeToStoreIsDeadLettered(t *testing.T) {
	opts := quick
	opts.MaxStored, opts.DeadLetterExchange = 200, true
	r := newReceiver(t, opts)
	large := r.delivery("m1")
	large.Body = make([]byte, 200)
	if err := r.guard.Accept(t.Context(), r.db, large); err != nil {
		t.Fatal(err)
	}
	err := r.guard.AtMostOnce(t.Context(), r.db, large, func(context.Context, amqp.Delivery) error {
		t.Error("the effect ran")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.wantSaid("reject 1", "reject 1")
	r.wantRows(0, 0)
	r.wantNothingPending()
	if !strings.Contains(r.log.String(), "Options.MaxStored") {
		t.Error("the log does not tell why")
	}
}
