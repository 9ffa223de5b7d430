package pending

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

// A Worker stores each message of one consumer by [Worker.Accept], and handles the stored ones by
// [Worker.Work]. It is safe for concurrent use, and starts no goroutines. In memory it keeps the same
// data as an idempotency.Deduplicator. A consumer uses either Effects or a Worker; their
// operators' methods are the same.
type Worker struct {
	*messages
	lease time.Duration
}

// NewWorker returns a Worker that claims keys in inbox in the name of consumer. Name and opts follow
// the rules of idempotency.New.
func NewWorker(inbox driver.PendingMessages, consumer string, opts *WorkerOptions) (*Worker, error) {
	filled, m, err := opts.open(inbox, consumer)
	if err != nil {
		return nil, fmt.Errorf("new worker: %w", err)
	}
	return &Worker{m, filled.Lease}, nil
}

// errLeaseLost: another worker has taken the message since, or it was marked done.
var errLeaseLost = errors.New("another worker has the message")

// Accept stores d in the inbox, once for each key, and acks it; Work handles it later. The inbox's
// tables must be in db. After a crash before the commit nothing is stored, and the redelivery is
// accepted as new. After a later crash the redelivery is a duplicate.
//
// Use it for messages that take longer than a queue should hold them, or that must be kept with
// their error when they fail. The queue empties as fast as the database stores. Accept has the
// results of Handle.
func (w *Worker) Accept(ctx context.Context, db *sql.DB, d amqp.Delivery) error {
	if db == nil {
		panic("pending: Accept needs a database")
	}
	defer w.keys.PurgeSome(ctx, db, d)
	return w.keys.Deliver(ctx, d, func(ctx context.Context) (engine.Outcome, error) {
		key, err := w.keys.Key(d)
		if err != nil {
			return engine.Unfinished, err
		}
		message, err := w.storable(d)
		if err != nil {
			return engine.Unfinished, err
		}
		ended := engine.Duplicate
		err = engine.InOwnTx(ctx, db, func(ctx context.Context, tx bridge.Tx) error {
			fresh, err := w.keys.Claim(ctx, tx, key)
			if err != nil || !fresh {
				return err
			}
			added, err := w.inbox.AddPending(ctx, tx, w.keys.Consumer, driver.Pending{
				Key: key, State: driver.Ready, Run: uuid.NewString(), Message: message}, 0)
			if added {
				ended = engine.Kept
			}
			return err
		})
		if err == nil && ended == engine.Kept {
			w.signal()
		}
		return ended, err
	})
}

// A Handler handles a stored message. It does its work through tx, with the given context, and must
// not commit or roll back tx. d is the message as it was delivered; it cannot be acked.
type Handler func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error

// Work handles the messages that Accept has stored, until ctx ends, and then returns nil. Any
// number of goroutines and processes may work in parallel; each message is handled by one of them,
// in about the order in which they were accepted.
//
// A worker takes a message by a lease, which is committed before fn begins. By the database's clock
// the lease is WorkerOptions.Lease and a quarter long. Then the worker runs fn in a transaction that
// first deletes the message's row. So fn's effects and the deletion commit together, and a worker
// that has lost its lease commits neither:
//
//   - if a worker dies before its commit, it has done nothing, and another one takes the message
//     when the lease is over;
//   - if a worker dies after its commit, the message is handled and its row gone.
//
// An error or a panic of fn is a failed attempt. The message is tried again after a pause that grows
// from WorkerOptions.MinDelay to MaxDelay. After WorkerOptions.Attempts, or backoff.Permanent, it is
// Failed, with its error, and waits for an operator (List, Retry, MarkDone). An attempt that failed
// because of the database or the end of ctx does not count. After a deadlock, or a similar error of the
// database, the message is tried again soon, with pauses that grow to 10 seconds, or MaxDelay if that is
// less; after another error that does not count, and is not RetryLater's, after the longest of these.
// An attempt that lost its connection follows the rule of package idempotency. So does a COMMIT without
// an answer, or one that takes longer than WorkerOptions.Lease, unless it has succeeded. An attempt
// whose fn runs for longer than Lease counts, unless the database does not answer for 10 seconds then.
// An attempt in which the process died, or recorded no result before another worker took the message,
// counts, so a message that kills its workers ends as Failed too. So an outage that goes on when a lease
// ends may count one attempt of each message that a worker has.
//
// When ctx ends, Work begins no other message. The current attempt may go on for WorkerOptions.Drain.
// Then it is rolled back, and another worker may take its message.
func (w *Worker) Work(ctx context.Context, db *sql.DB, fn Handler) error {
	if db == nil || fn == nil {
		panic("pending: Work needs a database and a function")
	}
	return w.poll(ctx, func(ctx context.Context) (bool, error) {
		taken := time.Now() // not later than the lease begins by the database's clock
		mine, err := w.take(ctx, db, leased)
		if err != nil || mine == nil {
			return false, err
		}
		if mine.State == driver.Failed {
			w.keys.Log.Error("message failed", "message_id", mine.Key, "attempts", mine.Attempts, "error", mine.Error)
			return true, nil
		}
		return true, w.work(ctx, db, taken, *mine, fn)
	})
}

// work makes one attempt at a leased message.
func (w *Worker) work(ctx context.Context, db *sql.DB, taken time.Time, mine driver.Pending, fn Handler) error {
	d, err := engine.DecodeMessage(mine.Message)
	if err != nil {
		_, err = w.endRun(ctx, db, mine, failed, fmt.Errorf("%w: %w", errUnreadable, err))
		return err
	}
	draining, cancel := w.keys.Draining(ctx)
	defer cancel()
	leased, cancel := context.WithDeadlineCause(draining, taken.Add(w.lease), errLeaseOver)
	defer cancel()
	last := mine.Attempts >= w.keys.Opts.Attempts
	late := false // fn has returned after the lease; otherwise only the database can be late
	_, err = w.keys.InTx(engine.WithAttempt(leased, mine.Attempts, last), db, func(ctx context.Context, tx *sql.Tx) (engine.Outcome, error) {
		ours, _, err := w.write(ctx, bridge.SQL(tx), mine, w.transition(mine, done, nil))
		if err == nil && !ours {
			err = errLeaseLost
		}
		if err != nil {
			return engine.Unfinished, err
		}
		err = w.keys.Run(mine.Key, func() error { return fn(ctx, tx, d) })
		late = leased.Err() != nil
		return engine.Handled, err
	})
	switch {
	case err == nil:
		w.keys.Count.Handled.Add(1)
		w.keys.ClearFailures(mine.Key)
		return nil
	case errors.Is(err, errLeaseLost):
		w.keys.Log.Warn("message not handled", "message_id", mine.Key, "error", err)
		return nil
	}
	// The result is recorded however slow the database is. If another worker has taken the message
	// since, the record changes nothing.
	recording, cancel := engine.Outliving(ctx, w.lease/4)
	defer cancel()
	answers := ctx.Err() == nil && leased.Err() != nil && engine.Answers(recording, silence, engine.BeginOn(db, nil))
	loss := err
	if late {
		loss = nil // the end of its context has ended its connection
	}
	lossCounts := w.keys.CountsLoss(mine.Key, loss, answers)
	what, cause := interrupted, error(nil)
	switch {
	case ctx.Err() != nil:
	case late && !answers: // a statement of fn may have waited for the database
	case late:
		what, cause = failed, fmt.Errorf("%w: %w", context.Cause(leased), err)
		if engine.IsLater(err) {
			what = excused
		}
	case engine.IsFailure(err):
		what, cause = w.blamed(err), err
	case lossCounts: // also if a COMMIT has taken longer than the lease
		what, cause = failed, err
	}
	if what == failed && last {
		w.keys.ClearFailures(mine.Key)
	}
	_, failure := w.endRun(recording, db, mine, what, cause)
	if what == interrupted {
		failure = errors.Join(err, failure)
	}
	return failure
}

// silence is the time after which a database that does not answer is away.
const silence = 10 * time.Second

var errLeaseOver = errors.New("handler ran for longer than WorkerOptions.Lease")
