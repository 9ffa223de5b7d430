package idempotency_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency"
)

// The environment of a child: the point at which it stops to be killed, and
// what it works on.
const (
	childPoint  = "IDEMPOTENCY_TEST_CHILD"
	childAMQP   = "IDEMPOTENCY_TEST_AMQP"
	childQueue  = "IDEMPOTENCY_TEST_QUEUE"
	childDriver = "IDEMPOTENCY_TEST_DRIVER"
	childDSN    = "IDEMPOTENCY_TEST_DSN"

	inHandler   = "in the handler" // after its effects, before the commit
	afterCommit = "after the commit, before the ack"
)

// child is a receiver that handles one message and stops at its point.
func child() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	db, err := open(ctx, os.Getenv(childDriver), os.Getenv(childDSN))
	fail(err)
	guard, err := idempotency.New(db.inbox, "shop", nil)
	fail(err)
	conn, err := amqp.Dial(os.Getenv(childAMQP))
	fail(err)
	channel, err := conn.Channel()
	fail(err)
	deliveries, err := channel.Consume(os.Getenv(childQueue), "", false, false, false, false, nil)
	fail(err)
	d := <-deliveries
	if os.Getenv(childPoint) == afterCommit {
		d.Acknowledger = stopBeforeAck{d.Acknowledger}
	}
	fail(guard.Handle(ctx, db.DB, d, func(ctx context.Context, tx *sql.Tx) error {
		if err := db.placeOrder(ctx, tx, d.MessageId); err != nil {
			return err
		}
		if os.Getenv(childPoint) == inHandler {
			stop()
		}
		return nil
	}))
}

type stopBeforeAck struct{ amqp.Acknowledger }

func (stopBeforeAck) Ack(uint64, bool) error {
	stop()
	return nil
}

// stop tells the parent that the point is reached, and waits to be killed. If
// the parent is gone, so is the child.
func stop() {
	fmt.Println("reached")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// killReceiver runs a child on the queue and kills it at the point.
func killReceiver(t *testing.T, q *queue, db *database, point string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), childPoint+"="+point, childAMQP+"="+q.url, childQueue+"="+q.name,
		childDriver+"="+db.driver, childDSN+"="+db.dsn)
	cmd.Stderr = testLog{t}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "reached\n" {
		t.Errorf("the child said %q: %v", line, err)
	}
	_ = cmd.Process.Kill() // SIGKILL
	_ = cmd.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func TestAReceiverKilledAfterItsCommitBeforeItsAckHasHandledTheMessage(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		q := newQueue(t, quorum)
		q.publish("m1")
		killReceiver(t, q, db, afterCommit)
		db.wantOrders(t, 1)

		guard := newGuard(t, db.inbox, idempotency.Options{})
		d := next(t, q.consume())
		if !d.Redelivered {
			t.Error("the delivery is not a redelivery")
		}
		err := guard.Handle(t.Context(), db.DB, d, func(context.Context, *sql.Tx) error {
			t.Error("handled twice")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if stats := guard.Stats(); stats != (idempotency.Stats{Duplicates: 1}) {
			t.Errorf("stats are %+v", stats)
		}
		db.wantOrders(t, 1)
		q.wantEmpty()
	})
}

func TestAReceiverKilledBeforeItsCommitHasDoneNothing(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *database) {
		q := newQueue(t, quorum)
		q.publish("m1")
		killReceiver(t, q, db, inHandler)
		db.wantOrders(t, 0)

		guard := newGuard(t, db.inbox, idempotency.Options{})
		err := guard.Handle(t.Context(), db.DB, next(t, q.consume()), func(ctx context.Context, tx *sql.Tx) error {
			return db.placeOrder(ctx, tx, "m1")
		})
		if err != nil {
			t.Fatal(err)
		}
		if stats := guard.Stats(); stats != (idempotency.Stats{Handled: 1}) {
			t.Errorf("stats are %+v", stats)
		}
		db.wantOrders(t, 1)
		q.wantEmpty()
	})
}

// What the package comment promises for a message whose handling kills the
// process: the queue's delivery limit and dead-letter exchange catch it.
func TestAMessageThatKillsItsReceiversIsDeadLetteredByTheQueue(t *testing.T) {
	db := newSQLite(t)
	q := newQueue(t, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 2,
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
	q.publish("m1")
	for range 3 {
		killReceiver(t, q, db, inHandler)
	}
	if d := q.nextDead(); d.MessageId != "m1" {
		t.Errorf("message %q is in the dead queue", d.MessageId)
	}
	db.wantOrders(t, 0)
	q.wantEmpty()
}
