package main

import (
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A target is the receiver: it consumes the target queue and records when each message first came.
type target struct {
	url, queue string
	conn       *amqp.Connection
	done       chan struct{} // closed when the consumer has ended

	mu       sync.Mutex
	arrivals map[uint64]instant
	times    []instant // of all first arrivals, in the order of arrival
	again    int       // copies of messages that had already come; redeliveries of one copy do not count
	came     chan struct{}
}

const (
	targetPrefetch = 2000
	ackEvery       = 100 // messages, or when no delivery is waiting
)

func consume(url, queue string) (*target, error) {
	t := &target{url: url, queue: queue, arrivals: make(map[uint64]instant), came: make(chan struct{}, 1)}
	if err := t.connect(); err != nil {
		return nil, err
	}
	return t, nil
}

// connect begins to consume.
func (t *target) connect() error {
	conn, deliveries, err := consumeQueue(t.url, t.queue)
	if err != nil {
		return err
	}
	t.conn, t.done = conn, make(chan struct{})
	go t.take(deliveries, t.done)
	return nil
}

// reconnect connects again after the broker was away. The caller must not use t meanwhile.
func (t *target) reconnect() error {
	t.close()
	return t.connect()
}

func consumeQueue(url, queue string) (*amqp.Connection, <-chan amqp.Delivery, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, nil, fmt.Errorf("consume %s: %w", queue, err)
	}
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Qos(targetPrefetch, 0, false)
	}
	var deliveries <-chan amqp.Delivery
	if err == nil {
		deliveries, err = ch.Consume(queue, "", false, false, false, false, nil)
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("consume %s: %w", queue, err)
	}
	return conn, deliveries, nil
}

func (t *target) take(deliveries <-chan amqp.Delivery, done chan<- struct{}) {
	defer close(done)
	unacked := 0
	for d := range deliveries {
		at := now()
		t.note(d.Body, at, d.Redelivered)
		if unacked++; unacked >= ackEvery || len(deliveries) == 0 {
			_ = d.Ack(true) // fails only if the connection is closed; the broker then redelivers
			unacked = 0
		}
	}
}

func (t *target) note(body []byte, at instant, redelivered bool) {
	number, ok := numberOf(body)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !ok {
		return
	}
	if _, known := t.arrivals[number]; known {
		if !redelivered {
			t.again++
		}
		return
	}
	t.arrivals[number] = at
	t.times = append(t.times, at)
	select {
	case t.came <- struct{}{}:
	default:
	}
}

// between counts the messages that came between from and to.
func (t *target) between(from, to instant) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for i := len(t.times) - 1; i >= 0 && t.times[i] >= from; i-- {
		if t.times[i] < to {
			n++
		}
	}
	return n
}

// count returns how many different messages have come.
func (t *target) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.arrivals)
}

// wait waits until all the messages have come, for patience at most. It returns the latency of each
// that came, and the number of missing ones.
func (t *target) wait(messages []sent, patience time.Duration) (latencies []time.Duration, missing int) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	patient := true
	for _, m := range messages {
		at, ok := t.arrival(m.Number)
		for !ok && patient {
			select {
			case <-t.came:
			case <-timer.C:
				patient = false
			case <-t.done:
				patient = false
			}
			at, ok = t.arrival(m.Number)
		}
		if ok {
			latencies = append(latencies, max(0, at.sub(m.Committed)))
		} else {
			missing++
		}
	}
	return latencies, missing
}

// copies returns how many messages have come again.
func (t *target) copies() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.again
}

func (t *target) arrival(number uint64) (instant, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, ok := t.arrivals[number]
	return at, ok
}

func (t *target) close() {
	_ = t.conn.Close()
	<-t.done
}
