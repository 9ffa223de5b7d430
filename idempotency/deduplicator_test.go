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

	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/idempotency/internal/receivertest"
)

func TestEachConsumerHandlesAMessageOnceAndAcksItAfterTheCommit(t *testing.T) {
	r := newReceiver(t, idempotency.Options{})
	r.Channel.OnAck = func() { r.WantRows(1, 1) }
	r.handle(receivertest.PlaceOrder("m1"))
	r.handle(receivertest.MustNotRun(t))
	r.WantSaid("ack 1", "ack 2")
	r.wantStats(idempotency.Stats{Handled: 1, Duplicates: 1})

	r.Channel.OnAck = nil
	billing := r.newDedup("billing", idempotency.Options{})
	receivertest.Must(t, billing.Handle(t.Context(), r.DB, r.Delivery("m1"), receivertest.PlaceOrder("m1")))
	r.WantRows(2, 2)
}

// Whatever a handler does, the claim and its effects are committed together or not at all.
func TestTheOutcomeOfADeliveryWhoseHandlerFails(t *testing.T) {
	for name, c := range map[string]struct {
		attempts int
		ends     func(ctx context.Context, tx *sql.Tx, run int) error // after it has placed an order
		pauses   time.Duration                                        // pauses between attempts, each varied by up to a half
		said     string
		rows     int
		stats    idempotency.Stats
		logs     string
	}{
		"twice": {3, func(_ context.Context, _ *sql.Tx, run int) error {
			if run < 3 {
				return receivertest.ErrHandler
			}
			return nil
		}, 300 * time.Millisecond, "ack 1", 1, idempotency.Stats{Handled: 1, FailedAttempts: 2}, receivertest.ErrHandler.Error()},
		"always": {3, func(context.Context, *sql.Tx, int) error { return receivertest.ErrHandler },
			300 * time.Millisecond, "reject 1", 0, idempotency.Stats{DeadLettered: 1, FailedAttempts: 3}, receivertest.ErrHandler.Error()},
		"for good": {0, func(context.Context, *sql.Tx, int) error {
			return fmt.Errorf("read order: %w", backoff.Permanent(receivertest.ErrHandler))
		},
			0, "reject 1", 0, idempotency.Stats{DeadLettered: 1, FailedAttempts: 1}, receivertest.ErrHandler.Error()},
		"with a request that cannot be answered": {0, func(context.Context, *sql.Tx, int) error {
			_, err := idempotency.Reply(amqp.Delivery{}, amqp.Publishing{})
			return err
		}, 0, "reject 1", 0, idempotency.Stats{DeadLettered: 1, FailedAttempts: 1}, "reply"},
		"by a panic, with its stack in the log": {1, func(context.Context, *sql.Tx, int) error { panic("out of range") },
			0, "reject 1", 0, idempotency.Stats{DeadLettered: 1, FailedAttempts: 1}, "deduplicator_test.go"},
		"by a commit of its own": {0, func(_ context.Context, tx *sql.Tx, _ int) error { return tx.Commit() },
			100 * time.Millisecond, "ack 1", 1, idempotency.Stats{Duplicates: 1, FailedAttempts: 1}, "ended the transaction itself"},
		"by a rollback of its own": {1, func(_ context.Context, tx *sql.Tx, _ int) error { return tx.Rollback() },
			0, "reject 1", 0, idempotency.Stats{DeadLettered: 1, FailedAttempts: 1}, "ended the transaction itself"},
		"by a change that the database does not commit": {2, func(ctx context.Context, tx *sql.Tx, _ int) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO invoices VALUES ('unknown')`)
			return err
		}, 100 * time.Millisecond, "reject 1", 0, idempotency.Stats{DeadLettered: 1, FailedAttempts: 2}, "FOREIGN KEY"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReceiver(t, idempotency.Options{Attempts: c.attempts, DeadLetterExchange: true})
				r.Exec(`CREATE TABLE customers (id TEXT PRIMARY KEY)`)
				r.Exec(`CREATE TABLE invoices (customer TEXT REFERENCES customers DEFERRABLE INITIALLY DEFERRED)`)
				run, start := 0, time.Now()
				r.handle(func(ctx context.Context, tx *sql.Tx) error {
					run++
					receivertest.Must(t, receivertest.PlaceOrder("m1")(ctx, tx))
					return c.ends(ctx, tx, run)
				})
				if took := time.Since(start); took < c.pauses/2 || took > c.pauses*3/2 {
					t.Errorf("pauses of %v took %v", c.pauses, took)
				}
				r.WantSaid(c.said)
				r.WantRows(c.rows, c.rows)
				r.wantStats(c.stats)
				if !strings.Contains(r.Log.String(), c.logs) {
					t.Errorf("the log does not name the reason:\n%s", r.Log)
				}
				receivertest.Must(t, r.dedup.Handle(t.Context(), r.DB, r.Delivery("m2"), receivertest.PlaceOrder("m2")))
				r.WantRows(c.rows+1, c.rows+1)
			})
		})
	}
}

func TestADeadLetterFunctionGetsTheReasonAndTheAckComesAfterIt(t *testing.T) {
	var r *receiver
	stored := 0
	r = newReceiver(t, idempotency.Options{Attempts: 1, DeadLetter: func(_ context.Context, d amqp.Delivery, reason error) error {
		if d.MessageId != "m1" || !errors.Is(reason, receivertest.ErrHandler) {
			t.Errorf("got message %q with reason %v", d.MessageId, reason)
		}
		r.WantSaid()
		stored++
		return nil
	}})
	r.handle(receivertest.Failing)
	if stored != 1 {
		t.Errorf("stored %d times", stored)
	}
	r.WantSaid("ack 1")
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
				wantHandedBack(t, r, r.dedup.Handle(t.Context(), r.DB, r.Delivery("m1"), receivertest.Failing), receivertest.ErrHandler)
				if time.Since(start) < time.Minute {
					t.Errorf("handed back after %v", time.Since(start))
				}
				r.wantStats(idempotency.Stats{HandedBack: 1, FailedAttempts: 1})
			})
		})
	}
}

// ways are the functions by which a Deduplicator takes a delivery that it must not handle.
var ways = map[string]func(r *receiver, d amqp.Delivery) error{
	"Handle": func(r *receiver, d amqp.Delivery) error {
		return r.dedup.Handle(r.T.Context(), r.DB, d, receivertest.MustNotRun(r.T))
	},
	"HandleBatch": func(r *receiver, d amqp.Delivery) error {
		return r.dedup.HandleBatch(r.T.Context(), r.DB, []amqp.Delivery{d}, func(context.Context, *sql.Tx, []amqp.Delivery) error {
			r.T.Error("the handler ran")
			return nil
		})
	},
	"HandleWithClaim": func(r *receiver, d amqp.Delivery) error {
		return r.dedup.HandleWithClaim(r.T.Context(), d, func(ctx context.Context, claim idempotency.Claim) error {
			return r.inOwnTx(ctx, claim, func(*sql.Tx) error { r.T.Error("the handler committed"); return nil })
		})
	},
}

func TestAMessageThatCannotBeHandledOnceIsDeadLetteredWithTheReason(t *testing.T) {
	var reason error
	r := newReceiver(t, idempotency.Options{Retention: 10 * day,
		DeadLetter: func(_ context.Context, _ amqp.Delivery, why error) error {
			reason = why
			return nil
		}})
	dead := uint64(0)
	for _, c := range []struct {
		id, want string
	}{
		{"", "message ID is empty"},
		{strings.Repeat("x", 256), "message ID is 256 bytes long"},
		{"m\xff", "message ID is not UTF-8"},
		{"m\x00", "message ID contains a NUL"},
		{uuidFrom(10*day+time.Second, 1), idempotency.ErrTooOld.Error()},
	} {
		for way, handle := range ways {
			reason = nil
			receivertest.Must(t, handle(r, r.Delivery(c.id)))
			if reason == nil || !strings.Contains(reason.Error(), c.want) {
				t.Errorf("%s of %q: dead-lettered for %v, must be for %s", way, c.id, reason, c.want)
			}
			dead++
		}
	}
	r.WantRows(0, 0)
	r.wantStats(idempotency.Stats{DeadLettered: dead})

	known := uuidFrom(100*day, 1)
	r.claimed(known, 100*day) // not purged yet, so it can be judged
	for _, handle := range ways {
		receivertest.Must(t, handle(r, r.Delivery(known)))
	}
	r.wantStats(idempotency.Stats{DeadLettered: dead, Duplicates: 3})
}

func TestAMessageWithAUsableKeyIsHandledOnce(t *testing.T) {
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
				receivertest.Must(t, r.dedup.Handle(t.Context(), r.DB, r.Delivery(c.key), receivertest.PlaceOrder("m1")))
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
		d := r.Delivery(id)
		d.Headers = headers
		receivertest.Must(t, r.dedup.Handle(t.Context(), r.DB, d, receivertest.PlaceOrder(id)))
	}
	r.WantRows(2, 2)
	r.wantStats(idempotency.Stats{Handled: 2, Duplicates: 1, DeadLettered: 4})
}

// A Connection delivers a record in place of a message that cannot be read.
func TestAnUnreadableMessageReachesNeitherKeyNorHandler(t *testing.T) {
	fails := func(amqp.Delivery) (string, error) { t.Error("Options.Key was called"); return "key", nil }
	var reasons []string
	r := newReceiver(t, idempotency.Options{Key: fails, DeadLetter: func(_ context.Context, _ amqp.Delivery, reason error) error {
		reasons = append(reasons, reason.Error())
		return nil
	}})
	d := r.Delivery("")
	d.Headers = amqp.Table{"x-bridge-dead-record": "1", "x-bridge-unreadable": "headers are malformed"}
	receivertest.Must(t, r.dedup.Handle(t.Context(), r.DB, d, func(context.Context, *sql.Tx) error {
		t.Error("the handler was called")
		return nil
	}))
	if len(reasons) != 1 || !strings.Contains(reasons[0], "headers are malformed") {
		t.Errorf("dead-lettered for %q", reasons)
	}
	r.WantSaid("ack 1")
}
