package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
)

// BenchmarkLatency has 500 transactions a second commit one message of 512 bytes
// each, for ten seconds, and reports how long after the return of COMMIT (or
// before it, counted as zero) the message came from the target queue, and how
// long a transaction took.
func BenchmarkLatency(b *testing.B) {
	for b.Loop() {
		s := stage.On(b, ownPostgres(b), servertest.StartRabbitMQ(b, nil).URL(), stagingTopology)
		s.DB.SetMaxIdleConns(64)
		queue := s.Queue("target", quorum)
		stop := verify(b, s, build(b))
		s.Commit(stage.To(queue, "the worker has started when this comes"))
		s.Receive(queue, 1)
		arrived := watchArrivals(b, s, queue)
		committed := offer(b, s, queue, 500, 10*time.Second)
		latencies := arrived(committed)
		stop()
		report(b, latencies, "commit-to-target")
		b.ReportMetric(0, "ns/op")
	}
}

// offer commits rate transactions a second for some time and returns when each
// message's COMMIT returned.
func offer(b *testing.B, s *stage.Stage, queue string, rate int, during time.Duration) map[uuid.UUID]time.Time {
	b.Helper()
	var (
		wg        sync.WaitGroup
		mu        sync.Mutex
		committed = make(map[uuid.UUID]time.Time)
		took      []time.Duration
	)
	text := string(make([]byte, body))
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for end := time.Now().Add(during); time.Now().Before(end); {
		<-ticker.C
		wg.Go(func() {
			start := time.Now()
			ids, err := commit(b.Context(), s, queue, text)
			now := time.Now()
			if err != nil {
				b.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			committed[ids[0]] = now
			took = append(took, now.Sub(start))
		})
	}
	wg.Wait()
	report(b, took, "transaction")
	b.ReportMetric(float64(len(committed))/during.Seconds(), "commits/s")
	return committed
}

func commit(ctx context.Context, s *stage.Stage, queue, text string) ([]uuid.UUID, error) {
	tx, err := s.DB.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	ids, err := s.Sender.SendTx(ctx, tx, stage.To(queue, text))
	if err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return ids, tx.Commit()
}

// watchArrivals consumes a queue; the returned function waits until all of the
// committed messages have come, and returns how long each took.
func watchArrivals(b *testing.B, s *stage.Stage, queue string) func(map[uuid.UUID]time.Time) []time.Duration {
	b.Helper()
	deliveries, stop := s.Consume(queue)
	type arrival struct {
		id string
		at time.Time
	}
	arrivals := make(chan arrival, 1_000_000)
	go func() {
		defer close(arrivals)
		for d := range deliveries {
			arrivals <- arrival{d.MessageId, time.Now()}
			_ = d.Ack(false)
		}
	}()
	return func(committed map[uuid.UUID]time.Time) []time.Duration {
		b.Helper()
		defer stop()
		var latencies []time.Duration
		timeout := time.After(time.Minute)
		for len(latencies) < len(committed) {
			select {
			case a := <-arrivals:
				latencies = append(latencies, max(0, a.at.Sub(committed[uuid.MustParse(a.id)])))
			case <-timeout:
				b.Fatalf("%d of %d messages came", len(latencies), len(committed))
			}
		}
		return latencies
	}
}

func report(b *testing.B, values []time.Duration, name string) {
	slices.Sort(values)
	for _, p := range []int{50, 99} {
		at := values[min(len(values)-1, len(values)*p/100)]
		b.ReportMetric(float64(at)/1e6, fmt.Sprintf("%s-p%d-ms", name, p))
	}
}
