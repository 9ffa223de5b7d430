package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/pending"
	"github.com/twoqueue/twoqueue/idempotency/versions"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// walkingInbox counts a receiver's steps. A step is the moment before or after a call to the
// inbox, the broker or the outbox. A transaction's last call is committed by the next call's
// first step.
type walkingInbox struct {
	driver.Inbox
	countdown
}

func (w *walkingInbox) Claim(ctx context.Context, tx bridge.Tx, consumer string, keys []string) ([]string, error) {
	w.step()
	defer w.step()
	return w.Inbox.Claim(ctx, tx, consumer, keys)
}

func (w *walkingInbox) AddPending(ctx context.Context, tx bridge.Tx, consumer string, p driver.Pending, due time.Duration) (bool, error) {
	defer w.step()
	return w.Inbox.AddPending(ctx, tx, consumer, p, due)
}

func (w *walkingInbox) ChangePending(ctx context.Context, tx bridge.Tx, consumer, run string, p driver.Pending, due time.Duration) (bool, error) {
	w.step()
	defer w.step()
	return w.Inbox.ChangePending(ctx, tx, consumer, run, p, due)
}

func (w *walkingInbox) TakePending(ctx context.Context, tx bridge.Tx, consumer string, state driver.State) (*driver.Pending, error) {
	w.step()
	return w.Inbox.TakePending(ctx, tx, consumer, state)
}

func (w *walkingInbox) RemovePending(ctx context.Context, tx bridge.Tx, consumer, key, run string) (bool, error) {
	w.step()
	defer w.step()
	return w.Inbox.RemovePending(ctx, tx, consumer, key, run)
}

func (w *walkingInbox) ReleasePending(ctx context.Context, tx bridge.Tx, consumer, key, run string) (bool, error) {
	w.step()
	defer w.step()
	return w.Inbox.ReleasePending(ctx, tx, consumer, key, run)
}

func (w *walkingInbox) LockMark(ctx context.Context, tx bridge.Tx, consumer, name string) (string, error) {
	w.step()
	defer w.step()
	return w.Inbox.LockMark(ctx, tx, consumer, name)
}

func (w *walkingInbox) SetMark(ctx context.Context, tx bridge.Tx, consumer, name, mark string) error {
	defer w.step()
	return w.Inbox.SetMark(ctx, tx, consumer, name, mark)
}

func (w *walkingInbox) Keep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64, message []byte) (bool, error) {
	defer w.step()
	return w.Inbox.Keep(ctx, tx, consumer, entity, version, message)
}

func (w *walkingInbox) Unkeep(ctx context.Context, tx bridge.Tx, consumer, entity string, version int64) error {
	defer w.step()
	return w.Inbox.Unkeep(ctx, tx, consumer, entity, version)
}

// stepping is an acknowledger whose acks are steps, before and after.
type stepping struct {
	closableAcknowledger
	*countdown
}

// closableAcknowledger is the acknowledger that HighWater needs.
type closableAcknowledger interface {
	amqp.Acknowledger
	Close() error
	IsClosed() bool
}

// AckBatch acks a batch, between two steps.
func (s stepping) AckBatch(tags []uint64) error {
	s.step()
	defer s.step()
	return s.closableAcknowledger.(interface{ AckBatch(tags []uint64) error }).AckBatch(tags)
}

func (s stepping) Ack(tag uint64, multiple bool) error {
	s.step()
	defer s.step()
	return s.closableAcknowledger.Ack(tag, multiple)
}

// outbox stands for an outside effect: a file with one line for each e-mail.
type outbox string

func (o outbox) send(d amqp.Delivery) error {
	file, err := os.OpenFile(string(o), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = fmt.Fprintln(file, d.MessageId)
	return err
}

// sent returns how often the e-mail of a message was sent.
func (o outbox) sent(t *testing.T, id string) int {
	t.Helper()
	text, err := os.ReadFile(string(o))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(text), id+"\n")
}

var walkers = pending.Options{
	Attempts: 20, MinDelay: time.Millisecond, MaxDelay: time.Millisecond, Poll: 5 * time.Millisecond, // an effect may outlast its time
	EffectTimeout: 100 * time.Millisecond, HandBack: true, Logger: slog.New(slog.DiscardHandler),
}

var walkingWorkers = pending.WorkerOptions{
	Attempts: 20, MinDelay: time.Millisecond, MaxDelay: time.Millisecond, Poll: 5 * time.Millisecond,
	Lease: time.Second, HandBack: true, Logger: slog.New(slog.DiscardHandler),
}

// retryTask is the task whose message fails once and is put into a retry queue.
const retryTask = "retry"

// poisonTask is the task whose message ends the process each time.
const poisonTask = "poison"

// walker is a child's receiver.
type walker struct {
	*walkingInbox
	db      *database
	effects *pending.Effects
	worker  *pending.Worker
	outbox  outbox
	walk    func(ctx context.Context, ds []amqp.Delivery) error // handles deliveries
}

// task is a walker's work on its only message.
type task func(ctx context.Context, w *walker, d amqp.Delivery) error

var tasks = map[string]task{
	// Its first attempt has certainly sent no e-mail.
	"AtMostOnce, not done": func(ctx context.Context, w *walker, d amqp.Delivery) error {
		attempts := 0
		return w.effects.AtMostOnce(ctx, w.db.DB, d, func(_ context.Context, d amqp.Delivery) error {
			w.step()
			if attempts++; attempts == 1 {
				return pending.NotDone(errHandler)
			}
			defer w.step()
			return w.outbox.send(d)
		})
	},
	"AtMostOnce, in doubt": func(ctx context.Context, w *walker, d amqp.Delivery) error {
		return w.effects.AtMostOnce(ctx, w.db.DB, d, func(_ context.Context, d amqp.Delivery) error {
			return errors.Join(w.outbox.send(d), errHandler)
		})
	},
	poisonTask: func(context.Context, *walker, amqp.Delivery) error { os.Exit(1); return nil },
	"Accept and Work": func(ctx context.Context, w *walker, d amqp.Delivery) error {
		if err := w.worker.Accept(ctx, w.db.DB, d); err != nil {
			return err
		}
		ctx, done := context.WithCancel(ctx)
		attempts := 0
		return w.worker.Work(ctx, w.db.DB, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
			defer w.step()
			if attempts++; attempts == 1 {
				return errHandler
			}
			go func() {
				defer done() // if it comes too late, the parent finds the pending messages
				_ = servertest.Await(context.WithoutCancel(ctx), "it is committed", func() (bool, error) {
					counts, err := w.worker.Count(context.WithoutCancel(ctx), w.db.DB)
					return len(counts) == 0, err
				})
			}()
			return w.db.placeOrder(ctx, tx, d.MessageId)
		})
	},
}

// newWalker returns a walker that does its task, or handles its messages by a strategy.
func newWalker(ctx context.Context, c child) (*walker, error) {
	db, err := open(ctx, c.Store, c.DSN)
	if err != nil {
		return nil, err
	}
	w := &walker{walkingInbox: &walkingInbox{db.inbox, countdown{c.Step}}, db: db, outbox: c.Outbox}
	if does := tasks[c.Task]; does != nil {
		w.walk = func(ctx context.Context, ds []amqp.Delivery) error { return does(ctx, w, ds[0]) }
		w.effects, err = pending.New(w, "shop", &walkers)
		if err == nil {
			w.worker, err = pending.NewWorker(w, "shop", &walkingWorkers)
		}
		return w, err
	}
	if c.Task == retryTask {
		broker, err := bridge.NewBroker(c.AMQP, nil)
		if err != nil {
			return nil, err
		}
		queues, err := idempotency.DeclareReceiver(ctx, broker, c.Queue, &idempotency.ReceiverOptions{RetryDelays: shortRetries})
		if err != nil {
			return nil, err
		}
		dedup, err := idempotency.New(w, "shop", &idempotency.Options{Queues: queues, Logger: slog.New(slog.DiscardHandler)})
		w.walk = func(ctx context.Context, ds []amqp.Delivery) error {
			return dedup.Handle(ctx, db.DB, ds[0], func(context.Context, *sql.Tx) error { return errHandler })
		}
		return w, err
	}
	r, err := db.receiver(c.Task, w, versions.Options{})
	if err != nil {
		return nil, err
	}
	w.walk = func(ctx context.Context, ds []amqp.Delivery) error {
		effect := func(ctx context.Context, tx bridge.Tx, id string) error {
			defer w.step()
			return db.place(ctx, tx, id)
		}
		if r.batch != nil {
			return r.batch(ctx, ds, effect)
		}
		return r.handle(ctx, ds[0], effect)
	}
	return w, nil
}

// walkThrough kills a walker after its first step, another after its second, until one finishes
// alive. After each of them check finishes the work.
func walkThrough(t *testing.T, task string, least int, check func(t *testing.T, db *database, q *queue, o outbox, id string, effects *pending.Effects, worker *pending.Worker)) {
	databasesTakeTurns(t, func(t *testing.T, db *database, first, stride int) {
		q := newQueue(t, limitless)
		o := outbox(filepath.Join(t.TempDir(), "outbox"))
		effects, err := pending.New(db.inbox, "shop", &walkers)
		must(t, err)
		worker, err := pending.NewWorker(db.inbox, "shop", &walkingWorkers)
		must(t, err)
		for step := first; ; step += stride {
			id := fmt.Sprintf("%s %d", task, step)
			q.publish(id)
			killed := q.kill(db, child{Task: task, Step: step, Outbox: o})
			q.waitNoConsumers()
			check(t, db, q, o, id, effects, worker)
			if counts, err := effects.Count(t.Context(), db.DB); err != nil || len(counts) > 0 {
				t.Errorf("after a kill at step %d there are pending %v, %v", step, counts, err)
			}
			if !killed {
				if step <= least {
					t.Errorf("there were only %d steps", step-1)
				}
				return
			}
		}
	})
}
