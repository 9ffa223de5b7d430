// Package metrics collects the metrics of one receiver of package idempotency for Prometheus.
//
//	m := metrics.New("mailer", dedup, inbox)
//	consumer, err := idempotency.NewConsumer(broker, "emails", m.Handler(handle), nil)
//	m.Watch(consumer)
//	prometheus.MustRegister(m)
//
// Each metric has the label consumer. An application that does not import this package links no
// Prometheus.
//
//	twoqueue_receiver_deliveries_total{outcome}  deliveries by outcome, as idempotency.Stats has them
//	twoqueue_receiver_failed_attempts_total      attempts that count as the handler's failure
//	twoqueue_receiver_not_acked_total            acks that did not reach the broker
//	twoqueue_receiver_released_total             of versions.Ordered: kept events handled when their turn came
//	twoqueue_receiver_delivery_seconds           histogram of Handler and BatchHandler: one delivery with all its
//	                                             attempts and the pauses between them
//	twoqueue_receiver_consuming                  1 if the broker delivers to the Consumer, else 0
//	twoqueue_receiver_changed_timestamp_seconds  when consuming last changed; 0 before the first session
//	twoqueue_receiver_running                    handlers that run
//	twoqueue_receiver_oldest_running_seconds     how long the first of these has run; 0 if none runs
//	twoqueue_receiver_pending{state}             claimed messages that are not done
//	twoqueue_receiver_oldest_pending_seconds{state}
//	                                             the age of the oldest of the first 1000 of these in
//	                                             the order of their keys; 0 if there is none
//
// The last two are absent while the inbox does not answer.
//
// compose/prometheus/alerts.yml has alerts on these metrics for any receiver. Messages that are
// doubtful or failed wait for an operator (bridgectl pending list). If the process of a started
// message died, the message stays started until the receiver or an operator checks it, so the age
// of started messages has an alert, too.
package metrics

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/idempotency"
)

// A Strategy counts deliveries: a Deduplicator, a pending.Effects or pending.Worker, or
// a strategy of package versions.
type Strategy interface{ Stats() idempotency.Stats }

// A Receiver is the collector of one receiver. Any number of goroutines may call its methods.
type Receiver struct {
	name     string
	strategy Strategy
	pending  *pending // nil: pending messages are not counted
	consumer atomic.Pointer[idempotency.Consumer]
	handled  prometheus.Histogram
}

var _ prometheus.Collector = (*Receiver)(nil)

// New returns the collector of the receiver with a consumer name. inbox contains its pending
// messages; nil for a strategy without any. The collector queries the inbox at most once in ten
// seconds, and never changes it.
func New(consumer string, strategy Strategy, inbox driver.PendingMessages) *Receiver {
	r := &Receiver{
		name:     consumer,
		strategy: strategy,
		handled: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:        "twoqueue_receiver_delivery_seconds",
			Help:        "Duration of a delivery, with all its attempts and the pauses between them.",
			ConstLabels: prometheus.Labels{"consumer": consumer},
			Buckets:     prometheus.ExponentialBuckets(0.001, 3, 14),
		}),
	}
	if inbox != nil {
		r.pending = &pending{inbox: inbox, consumer: consumer}
	}
	return r
}

// Handler returns a handler for idempotency.NewConsumer that measures the duration of handle. It
// also accepts a pending.Effect.
func (r *Receiver) Handler(handle func(ctx context.Context, d amqp.Delivery) error) func(ctx context.Context, d amqp.Delivery) error {
	return func(ctx context.Context, d amqp.Delivery) error {
		began := time.Now()
		defer func() { r.handled.Observe(time.Since(began).Seconds()) }() // after a panic, too
		return handle(ctx, d)
	}
}

// BatchHandler is Handler for idempotency.NewBatchConsumer. Each delivery of a batch counts with
// the duration of the batch.
func (r *Receiver) BatchHandler(handle func(ctx context.Context, ds []amqp.Delivery) error) func(ctx context.Context, ds []amqp.Delivery) error {
	return func(ctx context.Context, ds []amqp.Delivery) error {
		began := time.Now()
		defer func() { // after a panic, too
			for range ds {
				r.handled.Observe(time.Since(began).Seconds())
			}
		}()
		return handle(ctx, ds)
	}
}

// Watch collects the state of a Consumer from now on.
func (r *Receiver) Watch(consumer *idempotency.Consumer) { r.consumer.Store(consumer) }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("twoqueue_receiver_"+name, help, append([]string{"consumer"}, labels...), nil)
}

var (
	deliveries     = desc("deliveries_total", "Deliveries, by outcome.", "outcome")
	failedAttempts = desc("failed_attempts_total", "Attempts that count as the handler's failure.")
	notAcked       = desc("not_acked_total", "Acks that did not reach the broker.")
	released       = desc("released_total", "Kept events that were handled when their turn came.")
	consuming      = desc("consuming", "1 if the broker delivers to this process, else 0.")
	changed        = desc("changed_timestamp_seconds", "Time of the last change of consuming, in seconds since 1970; 0 before the first session.")
	running        = desc("running", "Running handlers.")
	oldestRunning  = desc("oldest_running_seconds", "Time for which the oldest running handler has run; 0 if none runs.")
	pendings       = desc("pending", "Claimed messages that are not done, by state; doubtful and failed ones wait for an operator.", "state")
	oldestPending  = desc("oldest_pending_seconds", "Age of the oldest claimed message that is not done, among the first 1000 in the order of their keys; 0 if there is none.", "state")
)

// Describe implements prometheus.Collector.
func (r *Receiver) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{deliveries, failedAttempts, notAcked, released, consuming, changed, running, oldestRunning, pendings, oldestPending} {
		descs <- d
	}
	r.handled.Describe(descs)
}

// Collect implements prometheus.Collector.
func (r *Receiver) Collect(values chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		values <- prometheus.MustNewConstMetric(d, kind, value, append([]string{r.name}, labels...)...)
	}
	stats := r.strategy.Stats()
	for outcome, n := range map[string]uint64{
		"handled": stats.Handled, "duplicate": stats.Duplicates, "stale": stats.Stale, "kept": stats.Kept, "doubtful": stats.Doubtful,
		"dead_lettered": stats.DeadLettered, "handed_back": stats.HandedBack, "left_unacked": stats.LeftUnacked, "retried_later": stats.RetriedLater,
	} {
		send(deliveries, prometheus.CounterValue, float64(n), outcome)
	}
	send(failedAttempts, prometheus.CounterValue, float64(stats.FailedAttempts))
	send(notAcked, prometheus.CounterValue, float64(stats.NotAcked))
	send(released, prometheus.CounterValue, float64(stats.Released))
	r.handled.Collect(values)
	if consumer := r.consumer.Load(); consumer != nil {
		state := consumer.State()
		isConsuming := 0.0
		if state.Consuming {
			isConsuming = 1
		}
		send(consuming, prometheus.GaugeValue, isConsuming)
		send(changed, prometheus.GaugeValue, seconds(state.Since))
		send(running, prometheus.GaugeValue, float64(state.Running))
		send(oldestRunning, prometheus.GaugeValue, age(state.Oldest))
	}
	if r.pending == nil {
		return
	}
	found, err := r.pending.get()
	if err != nil {
		return // an error would fail the whole scrape, with the program's other metrics
	}
	for _, state := range states {
		send(pendings, prometheus.GaugeValue, float64(found.counts[state]), string(state))
		send(oldestPending, prometheus.GaugeValue, age(found.oldest[state]), string(state))
	}
}

// seconds returns the seconds since 1970; 0 for the zero time.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// age returns the time since t; 0 for the zero time, and if the database's clock is ahead.
func age(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(0, time.Since(t).Seconds())
}

var states = []driver.State{driver.Started, driver.Doubtful, driver.Ready, driver.Failed}

// pending counts the pending messages of all processes, in the inbox.
type pending struct {
	inbox    driver.PendingMessages
	consumer string

	mu    sync.Mutex
	at    time.Time // of the latest query
	found counted
	err   error
}

// counted is the answer of the inbox.
type counted struct {
	counts map[driver.State]int64
	oldest map[driver.State]time.Time
}

const (
	// askEvery is how long an answer is used again.
	askEvery = 10 * time.Second
	// askPatience is how long a scrape may wait for the database.
	askPatience = 2 * time.Second
	// mostAged is how many messages of a state are read to find the oldest.
	mostAged = 1000
)

func (p *pending) get() (counted, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() || time.Since(p.at) >= askEvery {
		ctx, cancel := context.WithTimeout(context.Background(), askPatience) // a scrape has no context
		defer cancel()
		p.found, p.err = p.ask(ctx)
		p.at = time.Now()
	}
	return p.found, p.err
}

func (p *pending) ask(ctx context.Context) (counted, error) {
	tx, err := p.inbox.DB().BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return counted{}, err
	}
	defer func() { _ = tx.Rollback() }() // it only reads
	found := counted{oldest: make(map[driver.State]time.Time)}
	if found.counts, err = p.inbox.CountPending(ctx, bridge.SQL(tx), p.consumer); err != nil {
		return counted{}, err
	}
	for state, n := range found.counts {
		if n == 0 {
			continue
		}
		messages, err := p.inbox.ListPending(ctx, bridge.SQL(tx), p.consumer, state, "", mostAged)
		if err != nil {
			return counted{}, err
		}
		for _, m := range messages {
			if found.oldest[state].IsZero() || m.Since.Before(found.oldest[state]) {
				found.oldest[state] = m.Since
			}
		}
	}
	return found, nil
}
