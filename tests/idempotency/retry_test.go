package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/program"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// retrying is a receiver's queue with retry queues of short delays.
type retrying struct {
	*queue
	*idempotency.Queues
	log     *servertest.Log
	retries []string // names of the retry queues
}

var shortRetries = []time.Duration{200 * time.Millisecond, 400 * time.Millisecond}

func newRetrying(t *testing.T, url string, opts idempotency.ReceiverOptions) *retrying {
	t.Helper()
	q := &retrying{queue: &queue{t: t, url: url, name: fmt.Sprintf("orders-%d", time.Now().UnixNano())}, log: new(servertest.Log)}
	if opts.RetryDelays == nil {
		opts.RetryDelays = shortRetries
	}
	opts.Logger = slog.New(slog.NewTextHandler(q.log, nil))
	broker, err := bridge.Dial(t.Context(), url, nil)
	must(t, err)
	t.Cleanup(broker.Close)
	q.Queues, err = idempotency.DeclareReceiver(t.Context(), broker, q.name, &opts)
	must(t, err)
	for _, retry := range idempotency.ReceiverQueues(q.name, &opts)[2:] { // after the dead queue and the queue itself
		q.retries = append(q.retries, retry.Name)
	}
	_, q.Channel = q.dial()
	must(t, q.Confirm(false))
	return q
}

func (q *retrying) dedup(db *database, opts idempotency.Options) *idempotency.Deduplicator {
	q.t.Helper()
	opts.Queues, opts.Logger = q.Queues, slog.New(slog.NewTextHandler(testLog{q.t}, nil))
	dedup, err := idempotency.New(db.inbox, "shop", &opts)
	must(q.t, err)
	return dedup
}

// depth returns the number of ready messages in a queue.
func (q *retrying) depth(name string) int {
	q.t.Helper()
	state, err := q.QueueDeclarePassive(name, true, false, false, false, nil)
	must(q.t, err)
	return state.Messages
}

// dead waits for a message in the dead queue and takes it.
func (q *retrying) dead() (d amqp.Delivery) {
	q.t.Helper()
	eventually(q.t, "a message is dead", func() (ok bool, err error) {
		d, ok, err = q.Get(q.name+".dead", true)
		return ok, err
	})
	d, err := wire.OpenDead(d)
	must(q.t, err)
	return d
}

// strange returns a message with every property on which a broker acts. Its x-death says that it
// expired in the queue before: a broker that believes this drops the message when it comes back
// there.
func strange(q *retrying, id string) amqp.Publishing {
	return amqp.Publishing{MessageId: id, Body: []byte(id), UserId: "guest", Expiration: "3600000", CorrelationId: "c", Headers: amqp.Table{
		"mine": "yes", "CC": []any{"copies"}, "x-death": []any{amqp.Table{"queue": q.name, "reason": "expired", "count": int64(1), "exchange": "", "routing-keys": []any{q.name}}},
	}}
}

func TestAFailingMessageWaitsInItsRetryQueuesAndHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	const others, attempts = 50, 4
	db := newDatabase(t, "SQLite")
	q := newRetrying(t, servertest.Vhost(t), idempotency.ReceiverOptions{})
	must(t, q.ExchangeDeclare("shop", amqp.ExchangeDirect, true, false, false, false, nil))
	must(t, q.QueueBind(q.name, "order", "shop", false, nil))
	failing := []string{"f1", "f2", "f3", "f4"}
	for _, id := range failing {
		must(t, q.Publish("shop", "order", true, false, strange(q, id)))
	}
	q.publish(names("m", others)...)
	type attempt struct {
		d      amqp.Delivery
		number int
		last   bool
		at     time.Time
	}
	var mu sync.Mutex
	seen := make(map[string][]attempt)
	dedup := q.dedup(db, idempotency.Options{Attempts: attempts, MinDelay: time.Hour, MaxDelay: time.Hour, Hold: 2 * time.Hour})
	r := q.run(q.url, func(ctx context.Context, d amqp.Delivery) error {
		return dedup.Handle(ctx, db.DB, d, func(ctx context.Context, tx *sql.Tx) error {
			if !strings.HasPrefix(d.MessageId, "f") {
				return db.placeOrder(ctx, tx, d.MessageId)
			}
			number, last := idempotency.Attempt(ctx)
			mu.Lock()
			defer mu.Unlock()
			seen[d.MessageId] = append(seen[d.MessageId], attempt{d, number, last, time.Now()})
			if d.MessageId == "f1" && number == 3 {
				return db.placeOrder(ctx, tx, d.MessageId)
			}
			return errHandler
		})
	}, idempotency.ConsumerOptions{Workers: 2}) // in place, each would occupy a worker for an hour
	for range failing[1:] {
		d := q.dead()
		queue, ours := wire.ReceiverOf(d)
		if d.Headers[wire.HeaderDeadReason] != "failed" || d.Headers[wire.HeaderDeadAttempts] != int64(attempts) || !ours || queue != q.name ||
			d.Headers[wire.HeaderExchange] != "shop" || d.Headers[wire.HeaderRoutingKey] != "order" || d.Headers[wire.HeaderExpiration] != "3600000" ||
			d.Headers["mine"] != "yes" || d.Headers["x-death"] != nil || string(d.Body) != d.MessageId {
			t.Errorf("dead letter %s: headers %v", d.MessageId, d.Headers)
		}
	}
	settled(t, dedup, others+1)
	r.drained()
	q.wantEmpty()
	db.wantOrders(t, others+1)
	for _, id := range failing {
		want := attempts
		if id == "f1" {
			want = 3
		}
		if len(seen[id]) != want {
			t.Errorf("%s: %d attempts, want %d", id, len(seen[id]), want)
		}
		for i, a := range seen[id] {
			if a.number != i+1 || a.last != (i+1 == attempts) {
				t.Errorf("%s: attempt %d was number %d, last %t", id, i+1, a.number, a.last)
			}
			if a.d.Exchange != "shop" || a.d.RoutingKey != "order" || a.d.Expiration != "3600000" || (a.d.UserId == "guest") != (i == 0) || fmt.Sprint(a.d.Headers["CC"]) != "[copies]" {
				t.Errorf("%s: attempt %d saw exchange %q, key %q, %+v", id, i+1, a.d.Exchange, a.d.RoutingKey, a.d)
			}
			if i > 0 {
				if waited, least := a.at.Sub(seen[id][i-1].at), shortRetries[min(i-1, 1)]; waited < least {
					t.Errorf("%s: attempt %d came after %v, before %v", id, i+1, waited, least)
				}
			}
		}
	}
	if stats := dedup.Stats(); stats.RetriedLater != 2+3*(attempts-1) || stats.DeadLettered != 3 || stats.FailedAttempts != 2+3*attempts {
		t.Errorf("stats are %+v", stats)
	}
}

// lostBeforeAck loses the connection between the confirm of a message's retry copy and the ack of the
// message itself.
type lostBeforeAck struct {
	amqp.Acknowledger
	conn *amqp.Connection
}

func (l lostBeforeAck) Ack(tag uint64, multiple bool) error {
	return errors.Join(l.conn.CloseDeadline(time.Now().Add(time.Minute)), l.Acknowledger.Ack(tag, multiple))
}

// Then both are in the queues. If the handler succeeds, one of them is handled and the other is a
// duplicate; if it fails for good, both are dead. An operator sees two dead letters with one message
// ID, and replays one of them.
func TestAConnectionLostAfterTheRetryCopyLeavesTheMessageAndItsCopy(t *testing.T) {
	for name, succeeds := range map[string]bool{"the handler succeeds": true, "the handler fails for good": false} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t, "SQLite")
			q := newRetrying(t, servertest.Vhost(t), idempotency.ReceiverOptions{})
			dedup := q.dedup(db, idempotency.Options{Attempts: 2})
			q.publish("m1")
			conn, channel := q.dial()
			var d amqp.Delivery
			eventually(t, "the message comes", func() (ok bool, err error) {
				d, ok, err = channel.Get(q.name, false)
				return ok, err
			})
			d.Acknowledger = lostBeforeAck{d.Acknowledger, conn}
			fails := func(context.Context, *sql.Tx) error { return errHandler }
			if err := dedup.Handle(t.Context(), db.DB, d, fails); !errors.Is(err, idempotency.ErrNotAcked) {
				t.Fatalf("error %v, must be ErrNotAcked", err)
			}
			r := q.run(q.url, func(ctx context.Context, d amqp.Delivery) error {
				return dedup.Handle(ctx, db.DB, d, func(ctx context.Context, tx *sql.Tx) error {
					if !succeeds {
						return errHandler
					}
					return db.placeOrder(ctx, tx, d.MessageId)
				})
			}, idempotency.ConsumerOptions{Workers: 2})
			if succeeds {
				eventually(t, "both are done", func() (bool, error) {
					stats := dedup.Stats()
					return stats.Handled == 1 && stats.Duplicates == 1, nil
				})
			} else {
				for range 2 {
					if d := q.dead(); d.MessageId != "m1" {
						t.Errorf("%q is dead", d.MessageId)
					}
				}
			}
			r.drained()
			q.wantEmpty()
		})
	}
}

// An attempt that returns RetryLater does not count. The message waits in the first queue whose
// delay is long enough.
func TestRetryLaterWaitsInARetryQueue(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "SQLite")
	q := newRetrying(t, servertest.Vhost(t), idempotency.ReceiverOptions{RetryDelays: []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, time.Hour}})
	dedup := q.dedup(db, idempotency.Options{Attempts: 2})
	var begun []time.Time
	done := make(chan struct{})
	q.publish("m1")
	r := q.run(q.url, func(ctx context.Context, d amqp.Delivery) error {
		return dedup.Handle(ctx, db.DB, d, func(ctx context.Context, tx *sql.Tx) error {
			if number, _ := idempotency.Attempt(ctx); number != 1 {
				t.Errorf("attempt %d", number)
			}
			if begun = append(begun, time.Now()); len(begun) < 4 {
				return idempotency.RetryLater(errHandler, 200*time.Millisecond)
			}
			defer close(done)
			return idempotency.RetryLater(errHandler, 24*time.Hour)
		})
	}, idempotency.ConsumerOptions{Workers: 2})
	servertest.Next(t, "the fourth attempt", done)
	eventually(t, "the message waits in the slowest queue", func() (bool, error) { return q.depth(q.retries[2]) == 1, nil })
	r.drained()
	for i := range begun[1:] {
		if waited := begun[i+1].Sub(begun[i]); waited < 500*time.Millisecond {
			t.Errorf("the next attempt came after %v", waited)
		}
	}
	q.wantEmpty()
}

// Where the order counts, no message leaves the queue.
func TestAnOrderedConsumerRetriesInPlace(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "SQLite")
	q := newRetrying(t, servertest.Vhost(t), idempotency.ReceiverOptions{})
	dedup := q.dedup(db, idempotency.Options{Attempts: 3, MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
	q.publish("e:1", "e:2", "e:3")
	fails := func(id string, attempt int) bool { return attempt < 3 || id == "e:2" }
	r := q.run(q.url, failing(dedup, db, fails), idempotency.ConsumerOptions{Workers: 5, Key: func(amqp.Delivery) string { return "e" }})
	settled(t, dedup, 2)
	if d := q.dead(); d.MessageId != "e:2" || d.Headers[wire.HeaderDeadAttempts] != int64(3) {
		t.Errorf("%s is dead: %v", d.MessageId, d.Headers)
	}
	r.drained()
	if got := fmt.Sprint(db.placed(t)["e"]); got != "[1 3]" || dedup.Stats().RetriedLater != 0 {
		t.Errorf("placed %s, %+v", got, dedup.Stats())
	}
	q.wantEmpty()
}

// If no retry queue accepts the copy, the message is retried in place and not lost.
func TestARetryQueueThatTakesNothingLosesNothing(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, q *retrying){
		"deleted": func(t *testing.T, q *retrying) {
			for _, name := range q.retries {
				_, err := q.QueueDelete(name, false, false, false)
				must(t, err)
			}
		},
		"full": func(t *testing.T, q *retrying) {
			servertest.SetPolicy(t, q.url, "full", `^.*\.retry\..*$`, map[string]any{"max-length-bytes": 0})
			eventually(t, "the retry queue is full", func() (bool, error) { // the policy needs a moment
				confirm, err := q.PublishWithDeferredConfirm("", q.retries[0], true, false, amqp.Publishing{Body: []byte("fill")})
				must(t, err)
				acked, err := confirm.WaitContext(t.Context())
				return !acked, err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const messages = 20
			db := newDatabase(t, "SQLite")
			q := newRetrying(t, servertest.Vhost(t), idempotency.ReceiverOptions{RetryDelays: []time.Duration{time.Hour}})
			spoil(t, q)
			before := 0
			if name == "full" {
				before = q.depth(q.retries[0])
			}
			dedup := q.dedup(db, idempotency.Options{Attempts: 3, MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
			q.publish(names("m", messages)...)
			r := q.run(q.url, failing(dedup, db, func(_ string, attempt int) bool { return attempt < 3 }), idempotency.ConsumerOptions{Workers: 4})
			settled(t, dedup, messages)
			r.drained()
			db.wantOrders(t, messages)
			q.wantEmpty()
			if name == "full" && q.depth(q.retries[0]) != before {
				t.Error("a copy is in the full queue")
			}
			if n := strings.Count(q.log.String(), "retrying in place"); n != 1 {
				t.Errorf("%d warnings: %s", n, q.log.String())
			}
			if stats := dedup.Stats(); stats.RetriedLater != 0 || stats.FailedAttempts != 2*messages {
				t.Errorf("stats are %+v", stats)
			}
		})
	}
}

// The message's headers leave no room for a copy's headers.
func TestAMessageFullOfHeadersIsRetriedInPlace(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "SQLite")
	q := newRetrying(t, servertest.Vhost(t), idempotency.ReceiverOptions{})
	dedup := q.dedup(db, idempotency.Options{Attempts: 3, MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
	q.send(amqp.Publishing{MessageId: "m1", Headers: amqp.Table{"a": strings.Repeat("x", 110<<10)}})
	r := q.run(q.url, failing(dedup, db, func(string, int) bool { return true }), idempotency.ConsumerOptions{Workers: 4})
	if d := q.dead(); len(d.Headers["a"].(string)) != 110<<10 || d.Headers[wire.HeaderDeadAttempts] != int64(3) {
		t.Errorf("dead letter %s", d.MessageId)
	}
	r.drained()
	if stats := dedup.Stats(); stats.RetriedLater != 0 {
		t.Errorf("stats are %+v", stats)
	}
}

// A receiver is killed after each of its steps. A kill between the confirm of the copy and the
// ack leaves both messages, and the inbox recognizes the second as a duplicate.
func TestAReceiverKilledWhileItRetriesLaterLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	const least = 4 // before and after the claim, before and after the ack
	db := newDatabase(t, "SQLite")
	q := newRetrying(t, servertest.Vhost(t), idempotency.ReceiverOptions{})
	duplicates := uint64(0)
	for step := 1; ; step++ {
		id := fmt.Sprint("m", step)
		q.publish(id)
		killed := q.kill(db, child{Task: retryTask, Step: step, Messages: 1})
		q.waitNoConsumers()
		dedup := q.dedup(db, idempotency.Options{})
		marker := fmt.Sprint("behind ", step) // fails once, so it leaves the retry queue after the copy
		q.publish(marker)
		r := q.run(q.url, failing(dedup, db, func(id string, attempt int) bool { return attempt == 1 && id == marker }), idempotency.ConsumerOptions{Workers: 2})
		settled(t, dedup, 2)
		r.drained()
		q.wantEmpty()
		db.wantOrders(t, 2*step)
		duplicates += dedup.Stats().Duplicates
		if !killed {
			if step <= least {
				t.Errorf("there were only %d steps", step-1)
			}
			break
		}
	}
	if duplicates == 0 {
		t.Error("no kill left both the message and its copy")
	}
}

// A message that ends its receiver's process each time is dead-lettered at the delivery limit,
// and can be replayed from the dead queue.
func TestAMessageThatKillsItsReceiverEachTimeIsDeadAtTheDeliveryLimit(t *testing.T) {
	t.Parallel()
	const limit = 2
	db := newDatabase(t, "SQLite")
	q := newRetrying(t, servertest.Vhost(t), idempotency.ReceiverOptions{DeliveryLimit: limit})
	q.publish("poison")
	for range limit + 1 {
		q.ready(1)
		if code := program.StartCmd(t, servertest.Again(t, childVariable, child{
			Task: poisonTask, Messages: 1, AMQP: q.url, Queue: q.name, Store: db.name, DSN: db.dsn,
		})).Await(); code != 1 {
			t.Fatalf("the receiver ended with exit code %d", code)
		}
	}
	d := q.dead()
	deaths, _ := d.Headers["x-death"].([]any)
	if len(deaths) != 1 || deaths[0].(amqp.Table)["reason"] != "delivery_limit" || d.MessageId != "poison" {
		t.Fatalf("dead letter %q: headers %v", d.MessageId, d.Headers)
	}
	if queue, ok := wire.ReceiverOf(d); !ok || queue != q.name {
		t.Errorf("it is a letter of the receiver of %q", queue)
	}
	q.send(wire.ReplayToReceiver(d))
	dedup := q.dedup(db, idempotency.Options{})
	r := q.run(q.url, inserting(dedup, db), idempotency.ConsumerOptions{})
	settled(t, dedup, 1)
	r.drained()
	db.wantOrders(t, 1)
	q.wantEmpty()
}

// After a batch's handler fails, its messages are handled one by one. The ones that fail again
// leave for a retry queue, and the others are handled at once.
func TestAMessageThatFailsInABatchWaitsInItsRetryQueueAndHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	const others, attempts = 30, 3
	db := newDatabase(t, "SQLite")
	q := newRetrying(t, servertest.Vhost(t), idempotency.ReceiverOptions{})
	q.publish(append(names("m", others), "f1", "f2")...)
	dedup := q.dedup(db, idempotency.Options{Attempts: attempts, MinDelay: time.Hour, MaxDelay: time.Hour, Hold: 2 * time.Hour}) // in place a retry would wait for an hour
	var mu sync.Mutex
	seen := make(map[string][]int)
	q.runBatches(others+2, nil, func(ctx context.Context, ds []amqp.Delivery) error {
		return dedup.HandleBatch(ctx, db.DB, ds, func(ctx context.Context, tx *sql.Tx, fresh []amqp.Delivery) error {
			return eachOf(ctx, bridge.SQL(tx), fresh, func(ctx context.Context, tx bridge.Tx, id string) error {
				number, _ := idempotency.Attempt(ctx)
				if id[0] == 'f' && number > 0 { // handled alone
					mu.Lock()
					defer mu.Unlock()
					seen[id] = append(seen[id], number)
				}
				if id == "f2" || id == "f1" && number < attempts {
					return errHandler
				}
				return db.place(ctx, tx, id)
			})
		})
	}, func() {
		settled(t, dedup, others+1)
		if d := q.dead(); d.MessageId != "f2" || d.Headers[wire.HeaderDeadAttempts] != int64(attempts) {
			t.Errorf("dead letter %q: headers %v", d.MessageId, d.Headers)
		}
		eventually(t, "the dead letter is counted", func() (bool, error) { return dedup.Stats().DeadLettered == 1, nil })
	})
	db.wantOrders(t, others+1)
	q.wantEmpty()
	for _, id := range []string{"f1", "f2"} {
		if fmt.Sprint(seen[id]) != "[1 2 3]" {
			t.Errorf("%s: attempts %v", id, seen[id])
		}
	}
	if s := dedup.Stats(); s.RetriedLater != 2*(attempts-1) || s.FailedAttempts != 2*attempts-1 {
		t.Errorf("stats are %+v", s)
	}
}

func TestDeclareReceiverChecksItsOptionsAndTheQueuesThatExist(t *testing.T) {
	t.Parallel()
	url := servertest.Vhost(t)
	broker, err := bridge.Dial(t.Context(), url, nil)
	must(t, err)
	defer broker.Close()
	declare := func(opts *idempotency.ReceiverOptions) error {
		_, err := idempotency.DeclareReceiver(t.Context(), broker, "orders", opts)
		return err
	}
	for name, delays := range map[string][]time.Duration{
		"zero": {0}, "falling": {time.Second, time.Millisecond}, "twice": {time.Second, time.Second}, "split": {time.Microsecond}, "long": {25 * time.Hour},
	} {
		if err := declare(&idempotency.ReceiverOptions{RetryDelays: delays}); err == nil || !strings.Contains(err.Error(), "RetryDelays") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, limit := range []int{-1, 1_000_001} { // -1 makes RabbitMQ 3.x drop a message at its first requeue
		if err := declare(&idempotency.ReceiverOptions{DeliveryLimit: limit}); err == nil || !strings.Contains(err.Error(), "DeliveryLimit") {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	must(t, declare(nil))
	must(t, declare(nil))
	for _, queue := range idempotency.ReceiverQueues("orders", nil) { // a confirmed message of each outlives the broker
		if queue.Arguments["x-queue-type"] != "quorum" {
			t.Errorf("%s is no quorum queue: %v", queue.Name, queue.Arguments)
		}
	}
	for name, c := range map[string]struct {
		opts            idempotency.ReceiverOptions
		queue, property string
		arguments       amqp.Table
	}{
		"single active": {idempotency.ReceiverOptions{SingleActiveConsumer: true}, "orders", "x-single-active-consumer", nil},
		"ttl":           {idempotency.ReceiverOptions{RetryDelays: []time.Duration{7 * time.Second}}, "orders.retry.7s", "x-message-ttl", amqp.Table{"x-queue-type": "quorum"}},
	} {
		if c.arguments != nil {
			conn, err := amqp.Dial(url)
			must(t, err)
			channel, err := conn.Channel()
			must(t, err)
			args := idempotency.ReceiverQueues("orders", &c.opts)[2].Arguments
			args[c.property] = 8000
			_, err = channel.QueueDeclare(c.queue, true, false, false, false, args)
			must(t, err)
			_ = conn.Close()
		}
		mismatch := new(bridge.QueueMismatch)
		if err := declare(&c.opts); !errors.As(err, &mismatch) || mismatch.Queue != c.queue || mismatch.Property != c.property {
			t.Errorf("%s: %v", name, err)
		}
	}
}
