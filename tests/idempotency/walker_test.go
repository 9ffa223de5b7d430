package idempotency_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
)

// The environment of a receiver that is killed after one of its steps, beside that of a
// child: what it does, after which step it stops, and the file that its effect writes.
const (
	walkerTask   = "IDEMPOTENCY_TEST_TASK"
	walkerStep   = "IDEMPOTENCY_TEST_WALK_TO"
	walkerOutbox = "IDEMPOTENCY_TEST_OUTBOX"
)

// A walker counts its steps: each word to the inbox, to the broker and to the world
// outside, before and after. What it said last is committed when it says the next.
type walker struct {
	bridge.Inbox
	left int // steps until it stops
}

func (w *walker) step() {
	if w.left--; w.left == 0 {
		stop()
	}
}

func (w *walker) Claim(ctx context.Context, tx bridge.Tx, consumer, key string) (bool, error) {
	w.step()
	defer w.step()
	return w.Inbox.Claim(ctx, tx, consumer, key)
}

func (w *walker) Unclaim(ctx context.Context, tx bridge.Tx, consumer, key string) error {
	defer w.step()
	return w.Inbox.Unclaim(ctx, tx, consumer, key)
}

func (w *walker) AddPending(ctx context.Context, tx bridge.Tx, consumer string, p bridge.Pending, due time.Duration) (bool, error) {
	defer w.step()
	return w.Inbox.AddPending(ctx, tx, consumer, p, due)
}

func (w *walker) ChangePending(ctx context.Context, tx bridge.Tx, consumer, run string, p bridge.Pending, due time.Duration) (bool, error) {
	w.step()
	defer w.step()
	return w.Inbox.ChangePending(ctx, tx, consumer, run, p, due)
}

func (w *walker) TakePending(ctx context.Context, tx bridge.Tx, consumer string, state bridge.State) (*bridge.Pending, error) {
	w.step()
	return w.Inbox.TakePending(ctx, tx, consumer, state)
}

func (w *walker) RemovePending(ctx context.Context, tx bridge.Tx, consumer, key, run string) (bool, error) {
	w.step()
	defer w.step()
	return w.Inbox.RemovePending(ctx, tx, consumer, key, run)
}

func (w *walker) RemoveBarePending(ctx context.Context, tx bridge.Tx, consumer, key, run string) (bool, error) {
	w.step()
	defer w.step()
	return w.Inbox.RemoveBarePending(ctx, tx, consumer, key, run)
}

func (w *walker) Claimed(ctx context.Context, tx bridge.Tx, consumer, after string, limit int) ([]bridge.Claimed, error) {
	w.step()
	return w.Inbox.Claimed(ctx, tx, consumer, after, limit)
}

func (w *walker) Forget(ctx context.Context, tx bridge.Tx, consumer string, keys []string, age time.Duration) (int64, error) {
	defer w.step()
	return w.Inbox.Forget(ctx, tx, consumer, keys, age)
}

type walkingChannel struct {
	amqp.Acknowledger
	walker *walker
}

func (c walkingChannel) Ack(tag uint64, multiple bool) error {
	c.walker.step()
	defer c.walker.step()
	return c.Acknowledger.Ack(tag, multiple)
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
}

// A task is what a walker does.
type task func(ctx context.Context, db *database, guard *idempotency.Guard, w *walker, next func() amqp.Delivery) error

var tasks = map[string]task{
	"AtMostOnce": func(ctx context.Context, db *database, guard *idempotency.Guard, w *walker, next func() amqp.Delivery) error {
		return guard.AtMostOnce(ctx, db.DB, next(), func(_ context.Context, d amqp.Delivery) error {
			w.step()
			defer w.step()
			return outbox(os.Getenv(walkerOutbox)).send(d)
		})
	},
	// Its first attempt certainly has not sent anything.
	"AtMostOnce, not done": func(ctx context.Context, db *database, guard *idempotency.Guard, w *walker, next func() amqp.Delivery) error {
		attempts := 0
		return guard.AtMostOnce(ctx, db.DB, next(), func(_ context.Context, d amqp.Delivery) error {
			w.step()
			if attempts++; attempts == 1 {
				return idempotency.NotDone(errHandler)
			}
			defer w.step()
			return outbox(os.Getenv(walkerOutbox)).send(d)
		})
	},
	"AtMostOnce, in doubt": func(ctx context.Context, db *database, guard *idempotency.Guard, w *walker, next func() amqp.Delivery) error {
		return guard.AtMostOnce(ctx, db.DB, next(), func(_ context.Context, d amqp.Delivery) error {
			return errors.Join(outbox(os.Getenv(walkerOutbox)).send(d), errHandler)
		})
	},
	"Accept": func(ctx context.Context, db *database, guard *idempotency.Guard, w *walker, next func() amqp.Delivery) error {
		return guard.Accept(ctx, db.DB, next())
	},
	"Purge": func(ctx context.Context, db *database, guard *idempotency.Guard, w *walker, next func() amqp.Delivery) error {
		if _, err := guard.Purge(ctx, db.DB); err != nil {
			return err
		}
		return guard.Handle(ctx, db.DB, next(), func(ctx context.Context, tx *sql.Tx) error { return nil })
	},
	"Work": func(ctx context.Context, db *database, guard *idempotency.Guard, w *walker, next func() amqp.Delivery) error {
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

// walk does its task, and says so if it has not stopped before.
func walk() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	db, err := open(ctx, os.Getenv(childDriver), os.Getenv(childDSN))
	fail(err)
	steps, err := strconv.Atoi(os.Getenv(walkerStep))
	fail(err)
	w := &walker{db.inbox, steps}
	guard, err := idempotency.New(w, "shop", &walkers)
	fail(err)
	conn, err := amqp.Dial(os.Getenv(childAMQP))
	fail(err)
	channel, err := conn.Channel()
	fail(err)
	deliveries, err := channel.Consume(os.Getenv(childQueue), "", false, false, false, false, nil)
	fail(err)
	fail(tasks[os.Getenv(walkerTask)](ctx, db, guard, w, func() amqp.Delivery {
		d := <-deliveries
		d.Acknowledger = walkingChannel{d.Acknowledger, w}
		return d
	}))
	fmt.Println("done")
}

// killWalker runs a walker and kills it after a step. It returns false if that one has
// come to its end before.
func killWalker(t *testing.T, q *queue, db *database, task string, step int, o outbox) bool {
	t.Helper()
	program, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), walkerTask+"="+task, walkerStep+"="+strconv.Itoa(step), walkerOutbox+"="+string(o),
		childAMQP+"="+q.url, childQueue+"="+q.name, childDriver+"="+db.driver, childDSN+"="+db.dsn)
	cmd.Stderr = testLog{t}
	stdin, err := cmd.StdinPipe()
	must(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	_ = cmd.Process.Kill() // SIGKILL
	_ = cmd.Wait()
	if err != nil || line != "reached\n" && line != "done\n" {
		t.Fatalf("at step %d the walker said %q: %v", step, line, err)
	}
	return line == "reached\n"
}

// walkThrough kills a walker after its first step, another after its second, and so on
// until one comes to its end alive; after each, check finishes the work.
func walkThrough(t *testing.T, task string, least int, check func(t *testing.T, db *database, q *queue, o outbox, id string, guard *idempotency.Guard)) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		q := newQueue(t, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1_000_000})
		o := outbox(filepath.Join(t.TempDir(), "outbox"))
		for step := 1; ; step++ {
			id := fmt.Sprintf("%s %d", task, step)
			q.publish(id)
			killed := killWalker(t, q, db, task, step, o)
			eventually(t, "the walker is gone", func() (bool, error) {
				state, err := q.QueueDeclarePassive(q.name, true, false, false, false, nil)
				return state.Consumers == 0, err
			})
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
