package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/idempotency"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

type deliveryHandler = func(ctx context.Context, d amqp.Delivery) error

// running is a running consumer.
type running struct {
	*idempotency.Consumer
	t     *testing.T
	stop  context.CancelFunc
	ended chan error
	log   *servertest.Log
}

// run runs a consumer of q through address until stop or the end of the test.
func (q *queue) run(address string, handle deliveryHandler, opts idempotency.ConsumerOptions) *running {
	q.t.Helper()
	broker, err := bridge.NewBroker(address, nil)
	must(q.t, err)
	r := &running{t: q.t, ended: make(chan error, 1), log: new(servertest.Log)}
	opts.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	r.Consumer, err = idempotency.NewConsumer(broker, q.name, handle, &opts)
	must(q.t, err)
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	over := make(chan struct{})
	go func() {
		defer close(over)
		r.ended <- r.Run(ctx)
	}()
	q.t.Cleanup(func() {
		stop()
		<-over
		broker.Close()
		if q.t.Failed() {
			q.t.Log(r.log.String())
		}
	})
	return r
}

// drained stops the consumer and checks that it ends without an error.
func (r *running) drained() {
	r.t.Helper()
	r.stop()
	must(r.t, servertest.Next(r.t, "the consumer ends", r.ended))
}

// logged waits for a text in the log.
func (r *running) logged(text string) {
	r.t.Helper()
	eventually(r.t, "the log says "+text, func() (bool, error) { return strings.Contains(r.log.String(), text), nil })
}

// consuming waits until the consumer has a session, or has none.
func (r *running) consuming(want bool) {
	r.t.Helper()
	eventually(r.t, fmt.Sprint("consuming: ", want), func() (bool, error) { return r.State().Consuming == want, nil })
}

// ready waits until the queue has this number of ready messages.
func (q *queue) ready(want int) {
	q.t.Helper()
	eventually(q.t, fmt.Sprint(want, " messages are ready"), func() (bool, error) {
		state, err := q.QueueDeclarePassive(q.name, true, false, false, false, nil)
		return state.Messages == want, err
	})
}

func names(prefix string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s:%03d", prefix, i))
	}
	return ids
}

// inserting returns a handler that places an order for each message.
func inserting(dedup *idempotency.Deduplicator, db *database) deliveryHandler {
	return failing(dedup, db, func(string, int) bool { return false })
}

// failing returns a handler that places an order for each message, except in the attempts for
// which fails returns true.
func failing(dedup *idempotency.Deduplicator, db *database, fails func(id string, attempt int) bool) deliveryHandler {
	return func(ctx context.Context, d amqp.Delivery) error {
		return dedup.Handle(ctx, db.DB, d, func(ctx context.Context, tx *sql.Tx) error {
			if attempt, _ := idempotency.Attempt(ctx); fails(d.MessageId, attempt) {
				return errHandler
			}
			return db.placeOrder(ctx, tx, d.MessageId)
		})
	}
}

// settled waits until dedup has handled this number of messages.
func settled(t *testing.T, dedup interface{ Stats() idempotency.Stats }, want uint64) {
	t.Helper()
	eventually(t, fmt.Sprint(want, " messages are handled"), func() (bool, error) { return dedup.Stats().Handled == want, nil })
}

func TestAConsumerWorksInParallelAndTakesNoMoreThanItsPrefetch(t *testing.T) {
	t.Parallel()
	const messages, workers, prefetch = 30, 4, 9
	q := newQueue(t, quorum)
	q.publish(names("m", messages)...)
	begun, finish := make(chan string, messages), make(chan struct{})
	r := q.run(q.url, func(_ context.Context, d amqp.Delivery) error {
		begun <- d.MessageId
		<-finish
		return d.Ack(false)
	}, idempotency.ConsumerOptions{Workers: workers, Prefetch: prefetch})
	seen := make(map[string]bool)
	for range workers {
		seen[servertest.Next(t, "a handler begins", begun)] = true
	}
	for done := 0; done < messages; done++ {
		q.ready(max(0, messages-prefetch-done))
		state := r.State()
		if want := min(workers, messages-done); state.Running != want || !state.Consuming || time.Since(state.Oldest) < 0 {
			t.Errorf("after %d the state is %+v, want %d handlers", done, state, want)
		}
		if len(begun) > 0 {
			t.Error("more handlers run than there are workers")
		}
		finish <- struct{}{}
		if done+workers < messages {
			seen[servertest.Next(t, "the next handler begins", begun)] = true
		} else {
			eventually(t, "the handler has ended", func() (bool, error) { return r.State().Running == messages-done-1, nil })
		}
	}
	if len(seen) != messages {
		t.Errorf("%d messages came, not %d", len(seen), messages)
	}
	r.drained()
	q.wantEmpty()
}

// Each key's messages are handled one at a time, in the order of the queue, although connections
// are lost, attempts fail and messages are handed back.
func TestAConsumerHandlesEachKeyInOrder(t *testing.T) {
	t.Parallel()
	const keys, each = 6, 40
	db := newDatabase(t, "PostgreSQL")
	for name, opts := range map[string]idempotency.ConsumerOptions{
		"by key":     {Workers: 5, Key: func(d amqp.Delivery) string { return d.MessageId[:2] }},
		"one worker": {Workers: 1},
		"little room": {Workers: 5, MaxBytes: 12000, Prefetch: 40, // about five messages
			Key: func(d amqp.Delivery) string { return d.MessageId[:2] }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t, limitless)
			var ids []string
			for i := range each {
				for key := range keys {
					ids = append(ids, fmt.Sprintf("%s%d:%03d", name[:1], key, i))
				}
			}
			q.publish(ids...)
			valve, through := servertest.Through(t, q.url)
			dedup := newDedup(t, db.inbox, idempotency.Options{Attempts: 2, MinDelay: time.Millisecond, MaxDelay: time.Millisecond})
			var mu sync.Mutex
			busy, attempts := make(map[string]int), make(map[string]int)
			r := q.run(through, func(ctx context.Context, d amqp.Delivery) error {
				key := d.MessageId[:2]
				mu.Lock()
				if busy[key]++; busy[key] > 1 {
					t.Errorf("%d handlers of key %s run at once", busy[key], key)
				}
				mu.Unlock()
				defer func() {
					mu.Lock()
					busy[key]--
					mu.Unlock()
				}()
				return dedup.Handle(ctx, db.DB, d, func(ctx context.Context, tx *sql.Tx) error {
					mu.Lock()
					attempts[d.MessageId]++
					attempt, total := attempts[d.MessageId], len(attempts)
					mu.Unlock()
					if strings.HasSuffix(d.MessageId, "7") && attempt <= 2 {
						return errHandler // twice, so it is handed back
					}
					if attempt == 1 && total%60 == 59 {
						valve.Cut()
					}
					return db.placeOrder(ctx, tx, d.MessageId)
				})
			}, opts)
			settled(t, dedup, keys*each)
			r.drained()
			q.redeliver(func(d amqp.Delivery) error { return inserting(dedup, db)(t.Context(), d) }) // messages whose acks were lost
			placed := db.placed(t)
			for key := range keys {
				var want []string
				for i := range each {
					want = append(want, fmt.Sprintf("%03d", i))
				}
				if got := placed[fmt.Sprint(name[:1], key)]; !slices.Equal(got, want) {
					t.Errorf("key %d took effect in the order %v", key, got)
				}
			}
			q.wantEmpty()
		})
	}
}

// The queue is missing at the start, and is deleted later.
func TestAConsumerWaitsForAMissingQueue(t *testing.T) {
	t.Parallel()
	q := newQueue(t, quorum)
	remove := func() {
		_, err := q.QueueDelete(q.name, false, false, false)
		must(t, err)
	}
	remove()
	came := make(chan string)
	r := q.run(q.url, func(_ context.Context, d amqp.Delivery) error {
		defer func() { came <- d.MessageId }()
		return d.Ack(false)
	}, idempotency.ConsumerOptions{})
	for _, id := range []string{"m1", "m2"} {
		r.logged("the queue is missing; declare it")
		eventually(t, "the state shows the missing queue", func() (bool, error) {
			state := r.State()
			return !state.Consuming && state.Err != nil && strings.Contains(state.Err.Error(), "missing"), nil
		})
		_, err := q.QueueDeclare(q.name, true, false, false, false, quorum)
		must(t, err)
		q.publish(id)
		if got := servertest.Next(t, "a message", came); got != id {
			t.Errorf("%s came, not %s", got, id)
		}
		r.consuming(true)
		if id == "m1" {
			remove()
			r.logged("the broker has ended the consumer")
		}
	}
	r.drained()
}

func TestAConsumerWhoseLoginIsRefusedAtTheStartEnds(t *testing.T) {
	t.Parallel()
	q := newQueue(t, quorum)
	r := q.run(strings.Replace(servertest.User(t, q.url, "", "", ""), ":secret@", ":wrong@", 1), func(context.Context, amqp.Delivery) error { return nil }, idempotency.ConsumerOptions{})
	if err := servertest.Next(t, "the end of Run", r.ended); !errors.Is(err, bridge.ErrCredentials) {
		t.Errorf("Run returned %v", err)
	}
	other := q.run(servertest.User(t, q.url, "", "", ""), func(context.Context, amqp.Delivery) error { return nil }, idempotency.ConsumerOptions{})
	other.logged("let the login read it")
	other.drained()
}

// After the stop, running handlers may finish. No other handler begins, and no message is
// requeued.
func TestAConsumerDrains(t *testing.T) {
	t.Parallel()
	const messages, workers = 20, 3
	db := newDatabase(t, "PostgreSQL")
	q := newQueue(t, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 2}) // drops a message at its third requeue
	q.publish(names("m", messages)...)
	dedup := newDedup(t, db.inbox, idempotency.Options{MinDelay: time.Hour, MaxDelay: time.Hour, Hold: 24 * time.Hour, Drain: -1})
	begun, finish := make(chan context.Context, messages), make(chan struct{})
	r := q.run(q.url, func(ctx context.Context, d amqp.Delivery) error {
		return dedup.Handle(ctx, db.DB, d, func(ctx context.Context, tx *sql.Tx) error {
			begun <- ctx
			if d.MessageId == "m:001" {
				return errHandler // waits for another attempt
			}
			<-finish
			return db.placeOrder(ctx, tx, d.MessageId)
		})
	}, idempotency.ConsumerOptions{Workers: workers})
	for range workers {
		servertest.Next(t, "a handler begins", begun)
	}
	eventually(t, "an attempt has failed", func() (bool, error) { return dedup.Stats().FailedAttempts == 1, nil })
	r.stop()
	eventually(t, "the message that waited is left", func() (bool, error) { return dedup.Stats().LeftUnacked == 1, nil })
	select {
	case err := <-r.ended:
		t.Fatalf("the consumer ended while handlers ran: %v", err)
	default:
	}
	finish <- struct{}{}
	finish <- struct{}{}
	must(t, servertest.Next(t, "the consumer ends", r.ended))
	if len(begun) > 0 {
		t.Error("a handler began after the stop")
	}
	if got, want := dedup.Stats(), (idempotency.Stats{Handled: workers - 1, LeftUnacked: 1, FailedAttempts: 1}); got != want {
		t.Errorf("stats are %+v, want %+v", got, want)
	}
	q.ready(messages - workers + 1)

	second := newDedup(t, db.inbox, idempotency.Options{})
	r = q.run(q.url, inserting(second, db), idempotency.ConsumerOptions{Workers: workers})
	settled(t, second, messages-workers+1)
	r.drained()
	db.wantOrders(t, messages)
	if stats := second.Stats(); stats.Duplicates != 0 {
		t.Errorf("%d acks were lost", stats.Duplicates)
	}
	q.wantEmpty()
}

// Consumers start and stop under load. Their last acks arrive, so no message is even recognised
// as a duplicate.
func TestConsumersThatStopUnderLoadLoseNoAck(t *testing.T) {
	t.Parallel()
	const messages, consumers, life, workers = 1000, 3, 50, 8
	db := newDatabase(t, "PostgreSQL")
	q := newQueue(t, limitless)
	dedup := newDedup(t, db.inbox, idempotency.Options{})
	q.publish(names("m", messages)...)
	broker, err := bridge.NewBroker(q.url, nil)
	must(t, err)
	defer broker.Close()
	working, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	for range consumers {
		all.Go(func() {
			for working.Err() == nil {
				ctx, stop := context.WithCancel(working)
				var begun atomic.Int32
				handle := inserting(dedup, db)
				c, err := idempotency.NewConsumer(broker, q.name, func(ctx context.Context, d amqp.Delivery) error {
					if begun.Add(1) == life {
						stop() // in the middle
					}
					return handle(ctx, d)
				}, &idempotency.ConsumerOptions{Workers: workers, Logger: slog.New(slog.DiscardHandler)})
				if err == nil {
					err = c.Run(ctx)
				}
				if stop(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	settled(t, dedup, messages)
	stop()
	all.Wait()
	if stats := dedup.Stats(); stats.Handled != messages || stats.Duplicates+stats.HandedBack+stats.NotAcked+stats.FailedAttempts != 0 {
		t.Errorf("stats are %+v", stats)
	}
	db.wantOrders(t, messages)
	q.wantEmpty()
}

// When the time to drain has passed, the contexts of running handlers end.
func TestAConsumersHandlersAreCancelledAfterTheDrain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, "PostgreSQL")
	q := newQueue(t, quorum)
	q.publish("m1")
	dedup := newDedup(t, db.inbox, idempotency.Options{})
	begun := make(chan struct{})
	r := q.run(q.url, func(ctx context.Context, d amqp.Delivery) error {
		return dedup.Handle(ctx, db.DB, d, func(ctx context.Context, tx *sql.Tx) error {
			close(begun)
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}, idempotency.ConsumerOptions{Drain: 50 * time.Millisecond})
	servertest.Next(t, "the handler begins", begun)
	r.drained()
	if got, want := dedup.Stats(), (idempotency.Stats{LeftUnacked: 1}); got != want {
		t.Errorf("stats are %+v, want %+v", got, want)
	}
	q.ready(1)
}

// One handler never returns. It occupies its worker, and the message is handled once, however
// often the broker delivers it again. The consumer's end does not wait for the handler.
func TestAHandlerThatHangsStopsOnlyItself(t *testing.T) {
	t.Parallel()
	broker := servertest.StartRabbitMQ(t, nil)
	must(t, broker.SetConsumerTimeout(t.Context(), 2*time.Second))
	db := newDatabase(t, "PostgreSQL")
	q := newQueueOn(t, broker.URL(), limitless)
	dedup := newDedup(t, db.inbox, idempotency.Options{})
	handle, hang, hanging := inserting(dedup, db), make(chan struct{}), make(chan struct{}, 10)
	r := q.run(q.url, func(ctx context.Context, d amqp.Delivery) error {
		if d.MessageId == "hangs" {
			hanging <- struct{}{}
			<-hang
		}
		return handle(ctx, d)
	}, idempotency.ConsumerOptions{Workers: 2, Drain: time.Millisecond})
	q.publish("hangs")
	servertest.Next(t, "the handler hangs", hanging)
	for session := range uint64(3) { // the broker ends each session except the last
		r.consuming(true)
		q.publish(names(fmt.Sprint("m", session), 10)...)
		settled(t, dedup, 10*(session+1))
		if session < 2 {
			eventually(t, "the session ends", func() (bool, error) {
				return strings.Count(r.log.String(), "session ended") > int(session), nil
			})
		}
	}
	r.stop()
	if err := servertest.Next(t, "the consumer ends", r.ended); !errors.Is(err, idempotency.ErrNotDrained) {
		t.Errorf("Run returned %v", err)
	}
	if state := r.State(); state.Running != 1 || len(hanging) != 0 || time.Since(state.Oldest) < 2*time.Second {
		t.Errorf("the message that hangs was begun %d times more; the state is %+v", len(hanging), state)
	}
	close(hang)
	eventually(t, "the handler has ended", func() (bool, error) { return r.State().Running == 0, nil })
	db.wantOrders(t, 30) // the hanging handler's session is over
	q.ready(1)
}

// A delivery that its handler neither acks nor rejects, in whatever way, is redelivered.
func TestADeliveryThatItsHandlerDoesNotSettleComesAgain(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 4} {
		t.Run(fmt.Sprint("with ", workers), func(t *testing.T) {
			t.Parallel()
			q := newQueue(t, limitless)
			came := make(chan amqp.Delivery, 2)
			r := q.run(q.url, func(_ context.Context, d amqp.Delivery) error {
				came <- d
				if d.Redelivered {
					return d.Ack(false)
				}
				switch d.MessageId {
				case "error":
					return errHandler
				case "panic":
					panic("out of range")
				case "exit":
					runtime.Goexit()
				}
				return nil
			}, idempotency.ConsumerOptions{Workers: workers})
			for n, id := range []string{"nil", "error", "panic", "exit"} {
				q.publish(id)
				if servertest.Next(t, "a delivery", came).Redelivered || !servertest.Next(t, "another", came).Redelivered {
					t.Errorf("the message %s was not redelivered", id)
				}
				eventually(t, "the log says why", func() (bool, error) {
					return strings.Count(r.log.String(), "neither acked nor rejected") == n+1, nil
				})
			}
			r.drained()
			q.wantEmpty()
		})
	}
}

func TestAConsumerRefusesUnusableArguments(t *testing.T) {
	t.Parallel()
	broker, err := bridge.NewBroker("amqp://localhost/", nil)
	must(t, err)
	defer broker.Close()
	handle := func(context.Context, amqp.Delivery) error { return nil }
	for field, opts := range map[string]idempotency.ConsumerOptions{
		"Workers": {Workers: -1}, "Prefetch": {Workers: 3, Prefetch: 2}, "MaxBytes": {MaxBytes: -1}, "Drain": {Drain: -1},
	} {
		if _, err := idempotency.NewConsumer(broker, "q", handle, &opts); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	for name, create := range map[string]func() (*idempotency.Consumer, error){
		"broker": func() (*idempotency.Consumer, error) { return idempotency.NewConsumer(nil, "q", handle, nil) },
		"queue":  func() (*idempotency.Consumer, error) { return idempotency.NewConsumer(broker, "", handle, nil) },
		"handle": func() (*idempotency.Consumer, error) { return idempotency.NewConsumer(broker, "q", nil, nil) },
	} {
		if _, err := create(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
