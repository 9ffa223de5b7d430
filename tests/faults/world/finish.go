package world

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

const (
	quiet  = 1500 * time.Millisecond // nothing has changed for this long: the traffic has drained
	rounds = 12
)

// Finish ends all faults and the senders, lets the verifiers and then the receivers work until
// nothing is left, and ends them. An error says that something was left; the judge reports the
// details.
func (w *World) Finish(ctx context.Context) error {
	for _, p := range w.Processes() {
		p.Thaw()
		p.Database.Release()
		p.Broker.Release()
	}
	w.event(func(e *Events) { e.Finished = time.Now() })
	w.Diary.Note("the senders end")
	w.stop(w.Senders)
	err := servertest.Await(ctx, "the senders' transactions have ended", func() (bool, error) {
		ids, err := w.shop.sessionsOf(ctx, parts.Sender)
		return len(ids) == 0, err
	})
	w.Diary.Note("the verifiers work until nothing is left")
	w.awaitCarried(ctx)
	err = errors.Join(err, w.awaitDead(ctx))
	err = errors.Join(err, w.drain(ctx, w.Verifiers, w.stagingQueues(), w.giveEvidence, func() (int, error) {
		return count(ctx, w.shop.DB, `SELECT count(*) FROM bridge_ledger`)
	}))
	w.Diary.Note("the receivers work until nothing is left")
	nothing := func(context.Context) error { return nil }
	return errors.Join(err, w.drain(ctx, w.Receivers, w.receiverQueues(), nothing, func() (int, error) {
		return count(ctx, w.post.DB, `SELECT count(*) FROM effects`)
	}))
}

func count(ctx context.Context, db *sql.DB, query string, args ...any) (n int, err error) {
	err = db.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

// awaitCarried waits until no row carries a message. If rows stay, the judge reports them. A claim
// or a touch moves a stage time by the age of the row, so the longest wait is about as long as the
// age of the world.
func (w *World) awaitCarried(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Since(w.made)+carriedPatience)
	defer cancel()
	err := awaitCount(ctx, "no row carries a message", w.shop.DB, `SELECT count(*) FROM bridge_ledger WHERE stage_at IS NOT NULL`,
		func(n int) bool { return n == 0 })
	if err != nil {
		w.Diary.Note("carried rows are left: %v", err)
	}
}

// carriedPatience allows for a claim of a young row, and for a marker on a busy machine.
const carriedPatience = 45 * time.Second

// awaitDead waits until the dead queue holds all messages that are meant for it, since a verifier
// keeps unroutable messages for a while. A timeout is no error, since a deleted staging queue may
// have contained some of them.
func (w *World) awaitDead(ctx context.Context) error {
	want, err := count(ctx, w.shop.DB, w.shop.Text(`SELECT count(*) FROM orders WHERE target IN (?, ?)`),
		parts.TargetName(Nowhere), parts.TargetName(Forbidden))
	if err != nil {
		return fmt.Errorf("count the messages for the dead queue: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*parts.Unroutable)
	defer cancel()
	_ = servertest.Await(ctx, "the dead queue is full", func() (bool, error) {
		n, err := w.depth(w.config.Topology.DeadQueue())
		return n >= want, err
	})
	return nil
}

// drain lets processes work until their queues are empty and the count no longer changes, and ends
// them. Messages that an ended process still held return to their queue, so drain starts the
// processes again for another round. Each round calls begin first.
func (w *World) drain(ctx context.Context, workers []*Process, queues []string, begin func(context.Context) error, count func() (int, error)) error {
	still := quiet
	for round := 1; ; round++ {
		if err := begin(ctx); err != nil {
			return err
		}
		last, since := -1, time.Now()
		err := servertest.Await(ctx, fmt.Sprintf("%v are empty", queues), func() (bool, error) {
			n, err := count()
			if err != nil {
				return false, err
			}
			ready, err := w.depth(queues...)
			if err != nil {
				return false, err
			}
			if ready > 0 || n != last {
				last, since = n, time.Now()
			}
			return time.Since(since) > still, nil
		})
		w.stop(workers)
		left, leftErr := w.left(ctx, queues)
		if err = errors.Join(err, leftErr); err != nil || left == 0 {
			return err
		}
		if round == rounds {
			return fmt.Errorf("%d messages are left in %v", left, queues)
		}
		w.Diary.Note("round %d: %d messages are left in %v", round, left, queues)
		for _, p := range workers {
			p.Start()
		}
		// The messages may have been held for a missing target. A new verifier waits for it from
		// the beginning.
		still = quiet + parts.Unroutable
	}
}

// giveEvidence commits some orders once all verifiers have a session. A session drops nothing
// before it has found an order that was committed after its beginning (rule 6).
func (w *World) giveEvidence(ctx context.Context) error {
	if len(w.Verifiers) == 0 {
		return nil
	}
	if err := w.awaitConsumers(ctx, "all verifiers consume", w.config.Topology.Queue, len(w.Verifiers)); err != nil {
		return err
	}
	const perVerifier = 10 // the broker distributes them in turn
	var orders []parts.Transaction
	for range perVerifier * len(w.Verifiers) {
		orders = append(orders, parts.Transaction{Orders: []parts.Order{{ID: uuid.Must(uuid.NewV7()), To: Classic}}})
	}
	sender := w.AddScript(orders...)
	sender.Start()
	select {
	case <-sender.Done():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// AwaitUp waits until all verifiers and receivers consume.
func (w *World) AwaitUp(ctx context.Context) error {
	err := w.awaitConsumers(ctx, "all verifiers consume", w.config.Topology.Queue, len(w.Verifiers))
	for _, queue := range w.receiverQueues() {
		err = errors.Join(err, w.awaitConsumers(ctx, "all receivers consume", queue, len(w.Receivers)))
	}
	return err
}

func (w *World) awaitConsumers(ctx context.Context, what, queue string, consumers int) error {
	return servertest.Await(ctx, what, func() (all bool, err error) {
		err = w.look(func(ch *amqp.Channel) error {
			q, err := w.inspect(ch, queue)
			all = q.Consumers == consumers
			return err
		})
		return all, err
	})
}

// left counts the queues' messages once they have no consumer, so including the returned unacked
// messages.
func (w *World) left(ctx context.Context, queues []string) (n int, err error) {
	err = servertest.Await(ctx, "no consumer is left", func() (free bool, err error) {
		n, free = 0, true
		err = w.look(func(ch *amqp.Channel) error {
			for _, queue := range queues {
				q, err := w.inspect(ch, queue)
				if err != nil {
					return err
				}
				n += q.Messages
				free = free && q.Consumers == 0
			}
			return nil
		})
		return free, err
	})
	return n, err
}

// stop ends processes in good order, concurrently.
func (w *World) stop(processes []*Process) {
	var stopping sync.WaitGroup
	for _, p := range slices.Clone(processes) {
		stopping.Go(func() { w.hadEnded(p.Stop()) })
	}
	stopping.Wait()
}
