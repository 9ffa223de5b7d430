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
)

// A walkingInbox counts a receiver's steps: each word to the inbox, to the broker and to the world
// outside, before and after. What it said last is committed when it says the next.
type walkingInbox struct {
	driver.Inbox
	countdown
}

func (w *walkingInbox) Claim(ctx context.Context, tx bridge.Tx, consumer, key string) (bool, error) {
	w.step()
	defer w.step()
	return w.Inbox.Claim(ctx, tx, consumer, key)
}

func (w *walkingInbox) Unclaim(ctx context.Context, tx bridge.Tx, consumer, key string) error {
	defer w.step()
	return w.Inbox.Unclaim(ctx, tx, consumer, key)
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

func (w *walkingInbox) RemoveBarePending(ctx context.Context, tx bridge.Tx, consumer, key, run string) (bool, error) {
	w.step()
	defer w.step()
	return w.Inbox.RemoveBarePending(ctx, tx, consumer, key, run)
}

func (w *walkingInbox) Claimed(ctx context.Context, tx bridge.Tx, consumer, after string, limit int) ([]driver.Claimed, error) {
	w.step()
	return w.Inbox.Claimed(ctx, tx, consumer, after, limit)
}

func (w *walkingInbox) Forget(ctx context.Context, tx bridge.Tx, consumer string, keys []string, age time.Duration) (int64, error) {
	defer w.step()
	return w.Inbox.Forget(ctx, tx, consumer, keys, age)
}

// An outbox is the world outside: a file with a line for each e-mail.
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

// sent tells how often the e-mail of a message was sent.
func (o outbox) sent(t *testing.T, id string) int {
	t.Helper()
	text, err := os.ReadFile(string(o))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(text), id+"\n")
}

var walkers = idempotency.Options{
	Attempts: 20, MinDelay: time.Millisecond, MaxDelay: time.Millisecond, Poll: 5 * time.Millisecond, // an attempt may outlast its lease
	EffectTimeout: 100 * time.Millisecond, Lease: time.Second, Retention: 10 * 24 * time.Hour,
	HandBack: true,
}

// A task is what a walker does.
type task func(ctx context.Context, db *database, guard *idempotency.Guard, w *walkingInbox, o outbox, next func() amqp.Delivery) error

var tasks = map[string]task{
	"AtMostOnce": func(ctx context.Context, db *database, guard *idempotency.Guard, w *walkingInbox, o outbox, next func() amqp.Delivery) error {
		return guard.AtMostOnce(ctx, db.DB, next(), func(_ context.Context, d amqp.Delivery) error {
			w.step()
			defer w.step()
			return o.send(d)
		})
	},
	// Its first attempt certainly has not sent anything.
	"AtMostOnce, not done": func(ctx context.Context, db *database, guard *idempotency.Guard, w *walkingInbox, o outbox, next func() amqp.Delivery) error {
		attempts := 0
		return guard.AtMostOnce(ctx, db.DB, next(), func(_ context.Context, d amqp.Delivery) error {
			w.step()
			if attempts++; attempts == 1 {
				return idempotency.NotDone(errHandler)
			}
			defer w.step()
			return o.send(d)
		})
	},
	"AtMostOnce, in doubt": func(ctx context.Context, db *database, guard *idempotency.Guard, w *walkingInbox, o outbox, next func() amqp.Delivery) error {
		return guard.AtMostOnce(ctx, db.DB, next(), func(_ context.Context, d amqp.Delivery) error {
			return errors.Join(o.send(d), errHandler)
		})
	},
	"Accept": func(ctx context.Context, db *database, guard *idempotency.Guard, w *walkingInbox, o outbox, next func() amqp.Delivery) error {
		return guard.Accept(ctx, db.DB, next())
	},
	"Purge": func(ctx context.Context, db *database, guard *idempotency.Guard, w *walkingInbox, o outbox, next func() amqp.Delivery) error {
		if _, err := guard.Purge(ctx, db.DB); err != nil {
			return err
		}
		return guard.Handle(ctx, db.DB, next(), func(ctx context.Context, tx *sql.Tx) error { return nil })
	},
	"Work": func(ctx context.Context, db *database, guard *idempotency.Guard, w *walkingInbox, o outbox, next func() amqp.Delivery) error {
		accepting, err := idempotency.New(w.Inbox, "shop", &walkers)
		if err != nil {
			return err
		}
		if err := accepting.Accept(ctx, db.DB, next()); err != nil {
			return err
		}
		ctx, done := context.WithCancel(ctx)
		attempts := 0
		return guard.Work(ctx, db.DB, func(ctx context.Context, tx *sql.Tx, d amqp.Delivery) error {
			defer w.step()
			if attempts++; attempts == 1 {
				return errHandler
			}
			go func() { // when it is committed
				for {
					counts, err := guard.CountPending(context.Background(), db.DB)
					if err == nil && len(counts) == 0 {
						done()
						return
					}
				}
			}()
			return db.placeOrder(ctx, tx, d.MessageId)
		})
	},
}

// walk does its task.
func walk(ctx context.Context, c child, channel *amqp.Channel, deliveries <-chan amqp.Delivery) error {
	db, err := open(ctx, c.Driver, c.DSN)
	if err != nil {
		return err
	}
	w := &walkingInbox{db.inbox, countdown{c.Step}}
	guard, err := idempotency.New(w, "shop", &walkers)
	if err != nil {
		return err
	}
	return tasks[c.What](ctx, db, guard, w, c.Outbox, func() amqp.Delivery {
		d := <-deliveries
		d.Acknowledger = stepping{channel, &w.countdown}
		return d
	})
}

// walker is a child that does a task up to a step.
func walker(task string, step int, db *database, o outbox) child {
	return child{Does: "walk", What: task, Step: step, Outbox: o, Driver: db.driver, DSN: db.dsn}
}

// databasesTakeTurns is onEachDatabase with the steps that are the database's.
func databasesTakeTurns(t *testing.T, test func(t *testing.T, db *database, first, stride int)) {
	turn := 0
	onEachDatabase(t, func(t *testing.T, db *database) {
		first, stride := steps(turn, 2)
		turn++
		test(t, db, first, stride)
	})
}

// walkThrough kills a walker after its first step, another after its second, and so on
// until one comes to its end alive; after each, check finishes the work.
func walkThrough(t *testing.T, task string, least int, check func(t *testing.T, db *database, q *queue, o outbox, id string, guard *idempotency.Guard)) {
	databasesTakeTurns(t, func(t *testing.T, db *database, first, stride int) {
		q := newQueue(t, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000})
		o := outbox(filepath.Join(t.TempDir(), "outbox"))
		for step := first; ; step += stride {
			id := fmt.Sprintf("%s %d", task, step)
			q.publish(id)
			killed := q.kill(walker(task, step, db, o))
			q.deserted()
			opts := walkers
			opts.Logger = slog.New(slog.DiscardHandler)
			guard, err := idempotency.New(db.inbox, "shop", &opts)
			must(t, err)
			check(t, db, q, o, id, guard)
			if counts, err := guard.CountPending(t.Context(), db.DB); err != nil || len(counts) > 0 {
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
