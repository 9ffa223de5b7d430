package idempotency

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/idempotency/internal/engine"
)

const (
	// longRun is the time after which the messages of a handler no longer count as held. Otherwise a
	// handler that hangs, with more than half of ConsumerOptions.MaxBytes, would keep all later
	// messages out.
	longRun = time.Minute

	// unackedPause is the pause before a delivery that its handler has neither acked nor rejected goes
	// back. Without it the delivery would come again at the broker's speed.
	unackedPause = time.Second
)

// workers pass the deliveries of a Consumer's sessions to its handler: each delivery as soon as there
// is memory for it, its key is free and a worker is free.
type workers struct {
	handle func(ctx context.Context, ds []amqp.Delivery) error
	key    func(d amqp.Delivery) string // ConsumerOptions.Key
	batch  int                          // largest number of messages for one handler
	log    *slog.Logger
	memory *memoryLimit
	jobs   *schedule
}

func newWorkers(opts *ConsumerOptions, batch int, handle func(ctx context.Context, ds []amqp.Delivery) error, log *slog.Logger) *workers {
	w := &workers{handle: handle, key: opts.Key, batch: batch, log: log, memory: &memoryLimit{most: opts.MaxBytes}}
	w.jobs = newSchedule(opts.Workers, batch, w.run)
	return w
}

// take queues a delivery for a worker.
func (w *workers) take(s *consumerSession, d amqp.Delivery) {
	a := &acknowledger{session: s, openDelivery: openDelivery{tag: d.DeliveryTag}}
	s.open.add(&a.openDelivery)
	d.Acknowledger = a
	d = wire.Restored(d)
	release := w.memory.reserve(d)
	if release == nil {
		w.log.Info("no room for the message: it returns to the queue when half of ConsumerOptions.MaxBytes is free",
			"message_id", d.MessageId, "bytes", len(d.Body), "ends_session", s.Ordered)
		return
	}
	j := &job{session: s, delivery: d, acknowledger: a, key: w.keyOf(d), release: release}
	if w.batch > 1 {
		a.passKey = func() { w.jobs.releaseKey(j) }
	}
	w.jobs.add(j)
}

// keyOf returns the key of d's turn: d waits for earlier messages with the same key. Without a key,
// or if the order does not matter, d waits only for an earlier delivery of the same message.
func (w *workers) keyOf(d amqp.Delivery) (key string) {
	switch {
	case w.jobs.workers == 1: // separate turns would let messages of other keys pass
		return ""
	case w.key == nil:
		return d.MessageId
	}
	defer func() {
		if v := recover(); v != nil {
			key = ""
			w.log.Error("ConsumerOptions.Key panicked", "message_id", d.MessageId, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	if key = w.key(d); key == "" {
		return d.MessageId
	}
	return key
}

// run calls the handler, and makes sure that each delivery is acked or rejected.
func (w *workers) run(jobs []*job) {
	defer time.AfterFunc(longRun, func() {
		for _, j := range jobs {
			j.release()
		}
	}).Stop()
	session, id := jobs[0].session, jobs[0].delivery.MessageId
	returned := false
	defer func() {
		if !returned { // after a panic, or runtime.Goexit
			var reason any = "runtime.Goexit"
			if v := recover(); v != nil {
				reason = v
			}
			w.log.Error("handler did not return", "message_id", id, "messages", len(jobs), "panic", reason, "stack", string(debug.Stack()))
		}
		w.handBackUnacked(jobs)
	}()
	ds := make([]amqp.Delivery, len(jobs))
	for n, j := range jobs {
		ds[n] = j.delivery
	}
	err := w.handle(session.handling, ds)
	returned = true
	switch {
	case err == nil:
	case errors.Is(err, ErrLeftUnacked) && session.over():
		w.log.Info("message left in the queue", "message_id", id, "messages", len(jobs), "reason", err)
	default:
		w.log.Warn("delivery not finished", "message_id", id, "messages", len(jobs), "error", err)
	}
}

// handBackUnacked hands back the deliveries that the handler has neither acked nor rejected.
func (w *workers) handBackUnacked(jobs []*job) {
	session := jobs[0].session
	var open []*job
	for _, j := range jobs {
		if !j.acknowledger.done.Load() {
			open = append(open, j)
		}
	}
	if len(open) == 0 || session.over() {
		return
	}
	w.log.Error("handler neither acked nor rejected the message; requeueing it",
		"message_id", open[0].delivery.MessageId, "messages", len(open), "retry_in", unackedPause)
	if !engine.Pause(session.Stopping, unackedPause) {
		return
	}
	for _, j := range open {
		_ = j.delivery.Nack(false, true) // otherwise the end of the channel returns it
	}
}
