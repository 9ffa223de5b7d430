package idempotency_test

import (
	"context"
	"errors"
	"flag"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// everywhere makes the tests that kill a receiver after each of its steps run every step on every
// database.
var everywhere = flag.Bool("everywhere", false, "kill after each step on each database; otherwise the databases take turns")

// steps returns the first step after which a receiver is killed on one of several databases, and
// the distance to the next. A receiver takes the same steps on all databases, and the conformance
// suites test each database's reaction to a death.
func steps(turn, databases int) (first, stride int) {
	if *everywhere {
		return 1, 1
	}
	return 1 + turn, databases
}

// child is a receiver in a process of its own: this test binary once more. It stops after one of
// its steps to be killed.
type child struct {
	Task        string // one of tasks, or a strategy
	Step        int    // after which it stops
	Messages    int    // how many it handles
	Outbox      outbox
	AMQP, Queue string
	Store, DSN  string
}

// childVariable holds a child as JSON.
const childVariable = "IDEMPOTENCY_TEST_CHILD"

// Lines from a child to its parent.
const (
	reached = "reached"
	done    = "done"
)

// play is the child's process: a consumer with one worker, or with two for retryTask.
func (c child) play() error {
	ctx, cancel := context.WithTimeout(context.Background(), servertest.Patience)
	defer cancel()
	broker, err := bridge.NewBroker(c.AMQP, nil)
	if err != nil {
		return err
	}
	w, err := newWalker(ctx, c)
	if err != nil {
		return err
	}
	var failure error
	left, workers := c.Messages, 1
	if c.Task == retryTask {
		workers = 2 // with one it would keep the order, and use no retry queue
	}
	most := 1
	if c.Task == "HandleBatch" {
		most = c.Messages
	}
	consumer, err := idempotency.NewBatchConsumer(broker, c.Queue, most, func(ctx context.Context, ds []amqp.Delivery) error {
		for i, d := range ds {
			ds[i].Acknowledger = stepping{d.Acknowledger.(closableAcknowledger), &w.countdown}
		}
		failure = w.walk(ctx, ds)
		if left -= len(ds); left <= 0 || failure != nil {
			cancel()
		}
		return failure
	}, &idempotency.ConsumerOptions{Workers: workers})
	if err != nil {
		return err
	}
	if err := errors.Join(consumer.Run(ctx), failure); err != nil {
		return err
	}
	fmt.Println(done)
	return nil
}

// countdown counts a child's steps, and stops it after one of them.
type countdown struct{ left int }

func (c *countdown) step() {
	if c.left--; c.left == 0 {
		program.Stop(reached)
	}
}

// kill runs a child on the queue and the database and kills it. It returns false if the child
// finished before its step.
func (q *queue) kill(db *database, c child) bool {
	q.t.Helper()
	c.AMQP, c.Queue, c.Store, c.DSN = q.url, q.name, db.name, db.dsn
	p := program.StartDialogue(q.t, servertest.Again(q.t, childVariable, c))
	said := p.Says(reached, done)
	p.Kill()
	return said == reached
}
