package idempotency

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

func TestAMessageWhoseKeyPanicsHasNoKey(t *testing.T) {
	w := newWorkers(&ConsumerOptions{Workers: 2, Key: func(d amqp.Delivery) string {
		return string(d.Body[:2]) // panics without a body
	}}, 1, nil, slog.New(slog.DiscardHandler))
	if key := w.keyOf(amqp.Delivery{Body: []byte("ab")}); key != "ab" {
		t.Errorf("the key is %q", key)
	}
	if key := w.keyOf(amqp.Delivery{}); key != "" {
		t.Errorf("the key is %q after a panic", key)
	}
}

// A copy of a message waits for the handler of the previous one, which may hang.
func TestCopiesOfAMessageWithoutAKeyWaitForEachOther(t *testing.T) {
	w := newWorkers(&ConsumerOptions{Workers: 2, Key: func(amqp.Delivery) string { return "" }}, 1, nil, nil)
	if key := w.keyOf(amqp.Delivery{MessageId: "m1"}); key != "m1" {
		t.Errorf("the key is %q", key)
	}
}

// A message of another key does not overtake a message that waits for its key.
func TestOneWorkerKeepsTheOrderOfAllKeys(t *testing.T) {
	w := newWorkers(&ConsumerOptions{Workers: 1, Key: func(d amqp.Delivery) string { return string(d.Body) }}, 1, nil, nil)
	session := &consumerSession{Session: engine.Session{Stopping: t.Context()}}
	added, ended := make(chan struct{}), make(chan string, 3)
	jobs := newSchedule(1, 1, func(running []*job) {
		<-added
		ended <- running[0].delivery.MessageId
	})
	for _, d := range []amqp.Delivery{{MessageId: "m1", Body: []byte("a")}, {MessageId: "m2", Body: []byte("a")}, {MessageId: "m3", Body: []byte("b")}} {
		jobs.add(&job{session: session, delivery: d, key: w.keyOf(d), release: func() {}})
	}
	close(added)
	var order []string
	for range 3 {
		order = append(order, <-ended)
	}
	if want := []string{"m1", "m2", "m3"}; !slices.Equal(order, want) {
		t.Errorf("handled in the order %q", order)
	}
}

// A handler that ends its goroutine (runtime.Goexit) leaves its worker to the waiting messages.
func TestAHandlerThatEndsItsGoroutineDelaysNoOtherMessage(t *testing.T) {
	session := &consumerSession{Session: engine.Session{Stopping: t.Context()}}
	added, handled := make(chan struct{}), make(chan string, 2)
	jobs := newSchedule(1, 1, func(running []*job) {
		<-added
		if running[0].delivery.MessageId == "m1" {
			runtime.Goexit()
		}
		handled <- running[0].delivery.MessageId
	})
	for _, id := range []string{"m1", "m2", "m3"} {
		jobs.add(&job{session: session, delivery: amqp.Delivery{MessageId: id}, release: func() {}})
	}
	close(added)
	for _, want := range []string{"m2", "m3"} {
		if id := <-handled; id != want {
			t.Errorf("handled %s, want %s", id, want)
		}
	}
}

// Whatever the handlers do and the sessions last: each job runs once, or is dropped after the end of
// its session; no more than the workers run; jobs of one key run one after the other, in their order;
// and no goroutine outlives the last session.
func TestAScheduleRunsOrDropsEachJobOnce(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			workers, most := 1+random.IntN(4), 1+random.IntN(3)
			var mu sync.Mutex
			running, ran, released := 0, make(map[*job]int), make(map[*job]int)
			holders, latest := make(map[string]*job), make(map[string]uint64)
			var jobs *schedule
			jobs = newSchedule(workers, most, func(batch []*job) {
				mu.Lock()
				if running++; running > workers {
					t.Errorf("seed %d: %d workers run, of %d", seed, running, workers)
				}
				for _, j := range batch {
					ran[j]++
					if j.session != batch[0].session {
						t.Errorf("seed %d: a worker has jobs of two sessions", seed)
					}
					if j.key != "" {
						if holders[j.key] != nil || latest[j.key] > j.delivery.DeliveryTag {
							t.Errorf("seed %d: job %d runs beside another of its key, or after a later one", seed, j.delivery.DeliveryTag)
						}
						holders[j.key], latest[j.key] = j, j.delivery.DeliveryTag
					}
				}
				pause, early, exits := time.Duration(random.IntN(4)), random.IntN(2) == 0, random.IntN(10) == 0
				mu.Unlock()
				time.Sleep(pause)
				mu.Lock()
				for _, j := range batch {
					delete(holders, j.key)
				}
				mu.Unlock()
				if early {
					jobs.releaseKey(batch[0])
					time.Sleep(pause)
				}
				mu.Lock()
				running--
				mu.Unlock()
				if exits {
					runtime.Goexit()
				}
			})
			var all []*job
			for range 3 {
				stopping, end := context.WithCancel(t.Context())
				session := &consumerSession{Session: engine.Session{Stopping: stopping}}
				for range 30 {
					mu.Lock()
					j := &job{session: session, delivery: amqp.Delivery{DeliveryTag: uint64(len(all) + 1)}}
					if key := random.IntN(5); key > 0 && workers > 1 {
						j.key = fmt.Sprint(key)
					}
					pause := time.Duration(random.IntN(3))
					mu.Unlock()
					j.release = sync.OnceFunc(func() {
						mu.Lock()
						defer mu.Unlock()
						released[j]++
					})
					all = append(all, j)
					jobs.add(j)
					time.Sleep(pause)
				}
				mu.Lock()
				lasting := random.IntN(2) == 0
				mu.Unlock()
				if lasting {
					time.Sleep(time.Hour) // no handler takes so long
					mu.Lock()
					for _, j := range all[len(all)-30:] {
						if ran[j] == 0 {
							t.Errorf("seed %d: job %d has not run", seed, j.delivery.DeliveryTag)
						}
					}
					mu.Unlock()
				}
				end()
				jobs.prune()
			}
			time.Sleep(time.Hour)
			if count, _ := jobs.state(); count > 0 {
				t.Errorf("seed %d: %d workers still run", seed, count)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, j := range all {
				if ran[j] > 1 || released[j] != 1 {
					t.Errorf("seed %d: job %d ran %d times, and gave back its memory %d times", seed, j.delivery.DeliveryTag, ran[j], released[j])
				}
			}
			if len(jobs.ready) > 0 || len(jobs.behind) > 0 {
				t.Errorf("seed %d: %d jobs and %d keys are left", seed, len(jobs.ready), len(jobs.behind))
			}
		}) // it fails if a goroutine is left
	}
}
