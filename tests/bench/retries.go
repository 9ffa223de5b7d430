package main

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/postgres"
	"github.com/twoqueue/twoqueue/idempotency"
)

// retryScenario has some messages of a receiver fail, and measures how fast the others are handled.
var retryScenario = scenario{
	name:     "retries",
	what:     "a receiver with a Consumer handles a backlog of messages of 512 bytes (with -long a million), 32 at once, each with one INSERT by Deduplicator.Handle; one in a hundred fails five times: it waits in retry queues of 100 ms to 1.6 s, and then behind the backlog, or is retried in place after pauses of the same mean; others/s counts the messages that do not fail, and none fails in twoqueue-no-failure",
	headline: headline{metric: "others/s", ours: retryInQueues},
	trials: func(config) (trials []trial) {
		for _, name := range []string{retryNone, retryInQueues, retryInPlace} {
			trials = append(trials, trial{name: name, run: func(ctx context.Context, w *world, add adder) error { return w.retry(ctx, name, add) }})
		}
		return trials
	},
}

const (
	retryNone     = "twoqueue-no-failure"
	retryInQueues = "twoqueue-retry-queues"
	retryInPlace  = "twoqueue-in-place"

	failsOneIn = 100
	failsTimes = 5

	// retryBacklog is more than the receiver handles in a second, longRetryBacklog the backlog
	// with -long.
	retryBacklog     = 5_000
	longRetryBacklog = 1_000_000
)

var (
	errFails  = errors.New("fails")
	discarded = slog.New(slog.DiscardHandler)
)

// retry measures a receiver with a fresh database and fresh queues.
func (w *world) retry(ctx context.Context, name string, add adder) (err error) {
	p, db, leave, err := w.newPlace(ctx, receiveHandle, kind{Inbox: fewKeys})
	if err != nil {
		return err
	}
	defer leave()
	broker, err := bridge.Dial(ctx, p.AMQP, nil)
	if err != nil {
		return err
	}
	defer broker.Close()
	queue := p.Target + ".retries"
	opts := &idempotency.ReceiverOptions{RetryDelays: []time.Duration{}}
	if name == retryInQueues {
		for n := range failsTimes {
			opts.RetryDelays = append(opts.RetryDelays, 100*time.Millisecond<<n)
		}
	}
	queues, err := idempotency.DeclareReceiver(ctx, broker, queue, opts)
	if err != nil {
		return err
	}
	defer func() {
		for _, q := range idempotency.ReceiverQueues(queue, opts) {
			_, failed := w.control.QueueDelete(q.Name, false, false, false)
			err = errors.Join(err, failed)
		}
	}()
	backlog := int(retryBacklog * (w.warmUp + w.window).Seconds())
	if w.config.long {
		backlog = max(backlog, longRetryBacklog)
	}
	if err := fillBacklog(ctx, p.AMQP, queue, backlog); err != nil {
		return err
	}
	if err := w.settle(ctx); err != nil {
		return err
	}
	inbox, err := postgres.OpenInbox(ctx, db)
	if err != nil {
		return err
	}
	dedup, err := idempotency.New(inbox, consumer, &idempotency.Options{Queues: queues, Logger: discarded})
	if err != nil {
		return err
	}
	var others, recovered atomic.Int64
	receiver, err := idempotency.NewConsumer(broker, queue, func(ctx context.Context, d amqp.Delivery) error {
		number, _ := numberOf(d.Body)
		fails := name != retryNone && number%failsOneIn == 0
		err := dedup.Handle(ctx, db, d, func(ctx context.Context, tx *sql.Tx) error {
			if attempt, _ := idempotency.Attempt(ctx); fails && attempt <= failsTimes {
				return errFails
			}
			_, err := tx.ExecContext(ctx, insertOrder, 4711, "one order")
			if fails && err == nil {
				recovered.Add(1)
			}
			return err
		})
		if err == nil && !fails {
			others.Add(1)
		}
		return err
	}, &idempotency.ConsumerOptions{Workers: fullLoad, Logger: discarded})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- receiver.Run(running) }()
	time.Sleep(w.warmUp)
	begun, before, back := now(), others.Load(), recovered.Load()
	time.Sleep(w.window)
	seconds := now().sub(begun).Seconds()
	handled, came := others.Load()-before, recovered.Load()-back
	stop()
	if err := <-ended; err != nil {
		return err
	}
	add(name, "one in a hundred fails", "others/s", float64(handled)/seconds, "recovered/s", float64(came)/seconds)
	return nil
}

// fillBacklog puts n messages into a queue.
func fillBacklog(ctx context.Context, url, queue string, n int) error {
	publisher, err := newPublisher(url, 1)
	if err != nil {
		return err
	}
	defer publisher.close()
	text := newBodies()
	for done := 0; done < n; done += 1000 {
		letters := make([]letter, min(n-done, 1000))
		for i := range letters {
			letters[i] = letter{queue: queue, id: uuid.Must(uuid.NewV7()).String(), body: text.make(uint64(done+i), 512)}
		}
		if err := publisher.publish(ctx, letters...); err != nil {
			return err
		}
	}
	return nil
}
