package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/twoqueue/twoqueue/idempotency"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errHandler = errors.New("no such customer")

func failing(context.Context, *sql.Tx) error { return errHandler }

func TestEachConsumerHandlesAMessageOnceAndAcksItAfterTheCommit(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	r.channel.onAck = func() { r.wantRows(1, 1) }
	r.handle(placeOrder("m1"))
	r.handle(mustNotRun(t))
	r.wantSaid("ack 1", "ack 2")
	r.wantStats(idempotency.Stats{Handled: 1, Duplicates: 1})

	r.channel.onAck = nil
	billing := r.newGuard("billing", idempotency.Options{})
	must(t, billing.Handle(t.Context(), r.db, r.delivery("m1"), placeOrder("m1")))
	r.wantRows(2, 2)
}

// Whatever a handler does, the claim and its effects are committed together or not at all.
func TestWhatBecomesOfADeliveryWhoseHandlerFails(t *testing.T) {
	for name, c := range map[string]struct {
		attempts int
		ends     func(ctx context.Context, tx *sql.Tx, run int) error // after it has placed an order
		pauses   time.Duration                                        // each is varied by up to a half
		said     string
		rows     int
		stats    idempotency.Stats
		logs     string
	}{
		"twice": {3, func(_ context.Context, _ *sql.Tx, run int) error {
			if run < 3 {
				return errHandler
			}
			return nil
		}, 300 * time.Millisecond, "ack 1", 1, idempotency.Stats{Handled: 1, FailedAttempts: 2}, errHandler.Error()},
		"always": {3, func(context.Context, *sql.Tx, int) error { return errHandler },
			300 * time.Millisecond, "reject 1", 0, idempotency.Stats{DeadLettered: 1, FailedAttempts: 3}, errHandler.Error()},
		"for good": {0, func(context.Context, *sql.Tx, int) error {
			return fmt.Errorf("read order: %w", backoff.Permanent(errHandler))
		},
			0, "reject 1", 0, idempotency.Stats{DeadLettered: 1, FailedAttempts: 1}, errHandler.Error()},
		"with a request that cannot be answered": {0, func(context.Context, *sql.Tx, int) error {
			_, err := idempotency.Reply(amqp.Delivery{}, amqp.Publishing{})
			return err
		}, 0, "reject 1", 0, idempotency.Stats{DeadLettered: 1, FailedAttempts: 1}, "reply"},
		"by a panic, with its stack in the log": {1, func(context.Context, *sql.Tx, int) error { panic("out of range") },
			0, "reject 1", 0, idempotency.Stats{DeadLettered: 1, FailedAttempts: 1}, "guard_test.go"},
		"by a commit of its own": {0, func(_ context.Context, tx *sql.Tx, _ int) error { return tx.Commit() },
			100 * time.Millisecond, "ack 1", 1, idempotency.Stats{Duplicates: 1, FailedAttempts: 1}, "ended the transaction itself"},
		"by a rollback of its own": {1, func(_ context.Context, tx *sql.Tx, _ int) error { return tx.Rollback() },
			0, "reject 1", 0, idempotency.Stats{DeadLettered: 1, FailedAttempts: 1}, "ended the transaction itself"},
		"by what the database does not commit": {2, func(ctx context.Context, tx *sql.Tx, _ int) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO invoices VALUES ('nobody')`)
			return err
		}, 100 * time.Millisecond, "reject 1", 0, idempotency.Stats{DeadLettered: 1, FailedAttempts: 2}, "FOREIGN KEY"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Attempts: c.attempts, DeadLetterExchange: true})
				r.exec(`CREATE TABLE customers (id TEXT PRIMARY KEY)`)
				r.exec(`CREATE TABLE invoices (customer TEXT REFERENCES customers DEFERRABLE INITIALLY DEFERRED)`)
				run, start := 0, time.Now()
				r.handle(func(ctx context.Context, tx *sql.Tx) error {
					run++
					must(t, placeOrder("m1")(ctx, tx))
					return c.ends(ctx, tx, run)
				})
				if took := time.Since(start); took < c.pauses/2 || took > c.pauses*3/2 {
					t.Errorf("pauses of %v took %v", c.pauses, took)
				}
				r.wantSaid(c.said)
				r.wantRows(c.rows, c.rows)
				r.wantStats(c.stats)
				if !strings.Contains(r.log.String(), c.logs) {
					t.Errorf("the log does not tell the reason:\n%s", r.log)
				}
				must(t, r.guard.Handle(t.Context(), r.db, r.delivery("m2"), placeOrder("m2")))
				r.wantRows(c.rows+1, c.rows+1)
			})
		})
	}
}

func TestADeadLetterFunctionGetsTheReasonAndTheAckComesAfterIt(t *testing.T) {
	var r *receiver
	stored := 0
	r = newReceiver(t, idempotency.Options{Attempts: 1, DeadLetter: func(_ context.Context, d amqp.Delivery, reason error) error {
		if d.MessageId != "m1" || !errors.Is(reason, errHandler) {
			t.Errorf("got message %q with reason %v", d.MessageId, reason)
		}
		r.wantSaid()
		stored++
		return nil
	}})
	r.handle(failing)
	if stored != 1 {
		t.Errorf("stored %d times", stored)
	}
	r.wantSaid("ack 1")
	r.wantStats(idempotency.Stats{DeadLettered: 1, FailedAttempts: 1})
}

func TestAMessageThatCannotBeDeadLetteredIsHandedBackAfterAPause(t *testing.T) {
	errStore := errors.New("disk full")
	for name, deadLetter := range map[string]func(context.Context, amqp.Delivery, error) error{
		"none configured": nil,
		"it fails":        func(context.Context, amqp.Delivery, error) error { return errStore },
		"it panics":       func(context.Context, amqp.Delivery, error) error { panic(errStore) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Attempts: 1, MaxDelay: time.Minute, DeadLetter: deadLetter})
				start := time.Now()
				wantHandedBack(t, r, r.guard.Handle(t.Context(), r.db, r.delivery("m1"), failing), errHandler)
				if time.Since(start) < time.Minute {
					t.Errorf("handed back after %v", time.Since(start))
				}
				r.wantStats(idempotency.Stats{HandedBack: 1, FailedAttempts: 1})
			})
		})
	}
}

// ways are those in which a Guard takes a delivery that it must not handle.
var ways = map[string]func(r *receiver, d amqp.Delivery) error{
	"Handle": func(r *receiver, d amqp.Delivery) error {
		return r.guard.Handle(r.t.Context(), r.db, d, mustNotRun(r.t))
	},
	"AtMostOnce": func(r *receiver, d amqp.Delivery) error {
		return r.guard.AtMostOnce(r.t.Context(), r.db, d, func(context.Context, amqp.Delivery) error {
			r.t.Error("the effect ran")
			return nil
		})
	},
	"Accept": func(r *receiver, d amqp.Delivery) error { return r.guard.Accept(r.t.Context(), r.db, d) },
}

func TestWhatCannotBeHandledOnceIsDeadLetteredWithTheReason(t *testing.T) {
	var reason error
	r := newReceiver(t, idempotency.Options{Retention: 10 * day, MaxStored: 400,
		DeadLetter: func(_ context.Context, _ amqp.Delivery, why error) error {
			reason = why
			return nil
		}})
	dead := uint64(0)
	for _, c := range []struct {
		id   string
		size int
		want string
	}{
		{"", 0, "message ID is empty"},
		{strings.Repeat("x", 256), 0, "message ID is 256 bytes long"},
		{"m\xff", 0, "message ID is not UTF-8"},
		{"m\x00", 0, "message ID contains a NUL"},
		{uuidFrom(10*day+time.Second, 1), 0, idempotency.ErrTooOld.Error()},
		{"m1", 400, "Options.MaxStored"},
	} {
		for way, handle := range ways {
			if c.size > 0 && way == "Handle" {
				continue // it stores nothing
			}
			d := r.delivery(c.id)
			d.Body = make([]byte, c.size)
			reason = nil
			must(t, handle(r, d))
			if reason == nil || !strings.Contains(reason.Error(), c.want) {
				t.Errorf("%s of %q: dead-lettered for %v, must be for %s", way, c.id, reason, c.want)
			}
			dead++
		}
	}
	r.wantRows(0, 0)
	r.wantNothingPending()
	r.wantStats(idempotency.Stats{DeadLettered: dead})

	known := uuidFrom(100*day, 1)
	r.claimed(known, 100*day) // not purged yet: it can be judged
	for _, handle := range ways {
		must(t, handle(r, r.delivery(known)))
	}
	r.wantStats(idempotency.Stats{DeadLettered: dead, Duplicates: 3})
}

func TestWhatCanBeHandledOnceIsHandled(t *testing.T) {
	for name, c := range map[string]struct {
		key       string
		retention time.Duration
	}{
		"the longest":        {strings.Repeat("é", 127) + "x", 10 * day},
		"new enough":         {uuidFrom(10*day-time.Minute, 1), 10 * day},
		"from the future":    {uuidFrom(-100*day, 1), 10 * day},
		"of no time":         {"order 4711", 10 * day},
		"the default's":      {uuidFrom(29*day, 1), 0},
		"keys kept for ever": {uuidFrom(1000*day, 1), -1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t, idempotency.Options{Retention: c.retention, DeadLetterExchange: true})
			for range 2 {
				must(t, r.guard.Handle(t.Context(), r.db, r.delivery(c.key), placeOrder("m1")))
			}
			r.wantStats(idempotency.Stats{Handled: 1, Duplicates: 1})
		})
	}
}

func TestAKeyFunctionNamesTheMessage(t *testing.T) {
	byOrder := func(d amqp.Delivery) (string, error) {
		switch order := d.Headers["order"].(type) {
		case string:
			return order, nil
		case nil:
			return "", errors.New("no order")
		default:
			panic("order is no text")
		}
	}
	r := newReceiver(t, idempotency.Options{Key: byOrder, DeadLetterExchange: true})
	for id, headers := range map[string]amqp.Table{
		"m1": {"order": "4711"}, "m2": {"order": "4711"}, "m3": {"order": "4712"},
		"m4": nil, "m5": {"order": ""}, "m6": {"order": int32(7)}, "m7": {"order": string(make([]byte, 300))},
	} {
		d := r.delivery(id)
		d.Headers = headers
		must(t, r.guard.Handle(t.Context(), r.db, d, placeOrder(id)))
	}
	r.wantRows(2, 2)
	r.wantStats(idempotency.Stats{Handled: 2, Duplicates: 1, DeadLettered: 4})
}

// A Connection delivers a record in the place of a message that cannot be read.
func TestAnUnreadableMessageReachesNeitherKeyNorHandler(t *testing.T) {
	fails := func(amqp.Delivery) (string, error) { t.Error("Options.Key was called"); return "key", nil }
	var reasons []string
	r := newReceiver(t, idempotency.Options{Key: fails, DeadLetter: func(_ context.Context, _ amqp.Delivery, reason error) error {
		reasons = append(reasons, reason.Error())
		return nil
	}})
	d := r.delivery("")
	d.Headers = amqp.Table{"x-bridge-dead-record": "1", "x-bridge-unreadable": "headers are malformed"}
	must(t, r.guard.Handle(t.Context(), r.db, d, func(context.Context, *sql.Tx) error {
		t.Error("the handler was called")
		return nil
	}))
	if len(reasons) != 1 || !strings.Contains(reasons[0], "headers are malformed") {
		t.Errorf("dead-lettered for %q", reasons)
	}
	r.wantSaid("ack 1")
}
