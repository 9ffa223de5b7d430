package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func TestMain(m *testing.M) { servertest.Main(m) }

var (
	stagingTopology = bridge.Topology{Queue: "staging"}
	quorum          = amqp.Table{"x-queue-type": "quorum"}
)

const (
	backlog = 50_000
	body    = 512
	rounds  = 5
)

// BenchmarkDrain empties a staging queue of 50,000 messages of 512 bytes into
// another queue, both of them quorum queues: by turns through a verifier with
// PostgreSQL, and through the broker's own shovel (ack mode on-confirm), which
// checks nothing. The verifier is the worker's binary. It reports medians: of the
// rates, and of the rounds' ratios.
func BenchmarkDrain(b *testing.B) {
	for b.Loop() {
		broker := servertest.StartRabbitMQ(b, &servers.RabbitMQOptions{Plugins: []string{"rabbitmq_shovel"}})
		s := stage.On(b, ownPostgres(b), broker.URL(), stagingTopology)
		worker := build(b)
		var byVerifier, byShovel, ratios []float64
		for round := range rounds {
			byVerifier = append(byVerifier, drain(b, s, fmt.Sprint("verified", round), func(string) func() {
				return verify(b, s, worker)
			}))
			byShovel = append(byShovel, drain(b, s, fmt.Sprint("shovelled", round), func(queue string) func() {
				return shovel(b, broker, s.Topology.Queue, queue)
			}))
			ratios = append(ratios, byVerifier[round]/byShovel[round])
			b.Logf("round %d: verifier %.0f/s, shovel %.0f/s, ratio %.2f", round+1, byVerifier[round], byShovel[round], ratios[round])
		}
		b.ReportMetric(median(byVerifier), "verifier-msg/s")
		b.ReportMetric(median(byShovel), "shovel-msg/s")
		b.ReportMetric(median(ratios), "ratio")
		b.ReportMetric(0, "ns/op")
	}
}

// drain stages the backlog, lets move empty it into the queue, and returns the
// rate between the first message and the last.
func drain(b *testing.B, s *stage.Stage, queue string, move func(queue string) (stop func())) float64 {
	b.Helper()
	s.Queue(queue, quorum)
	fill(s, queue)
	stop := move(queue)
	defer stop()
	var first time.Time
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(5 * time.Minute)
	before := 0
	for {
		select {
		case <-ticker.C:
		case <-deadline:
			b.Fatalf("%d of %d messages after 5 minutes", s.Depth(queue), backlog)
		}
		n := s.Depth(queue)
		switch {
		case n > 0 && first.IsZero():
			first, before = time.Now(), n
		case n >= backlog:
			rate := float64(n-before) / time.Since(first).Seconds()
			_, err := s.Channel.QueueDelete(queue, false, false, false)
			must(b, err)
			return rate
		}
	}
}

// fill stages the backlog in committed transactions of a thousand.
func fill(s *stage.Stage, queue string) {
	const batch = 1000
	text := strings.Repeat("x", body)
	for range backlog / batch {
		messages := make([]bridge.Message, batch)
		for i := range messages {
			messages[i] = stage.To(queue, text)
		}
		s.Commit(messages...)
	}
}

// build builds the worker as it ships.
func build(b *testing.B) string {
	binary := filepath.Join(b.TempDir(), "verifier")
	output, err := exec.Command("go", "build", "-o", binary, "../../cmd/verifier").CombinedOutput()
	if err != nil {
		b.Fatalf("build the verifier: %v\n%s", err, output)
	}
	return binary
}

// verify runs the worker as a process, with its defaults. Where
// BRIDGE_TEST_PROFILE names a file it runs in this process instead, for a CPU
// profile of its last run.
func verify(b *testing.B, s *stage.Stage, worker string) (stop func()) {
	if name := os.Getenv("BRIDGE_TEST_PROFILE"); name != "" {
		return profiled(b, s, name)
	}
	command := exec.Command(worker)
	command.Env = append(os.Environ(), "BRIDGE_DATABASE_URL="+s.DatabaseURL, "BRIDGE_AMQP_URL="+s.AMQP,
		"BRIDGE_QUEUE="+s.Topology.Queue, "BRIDGE_LOG_LEVEL=warn")
	command.Stderr = os.Stderr
	must(b, command.Start())
	return func() {
		must(b, command.Process.Signal(syscall.SIGTERM))
		must(b, command.Wait())
		spent := command.ProcessState.UserTime() + command.ProcessState.SystemTime()
		b.ReportMetric(float64(spent.Microseconds())/backlog, "worker-µs/msg")
	}
}

func profiled(b *testing.B, s *stage.Stage, name string) (stop func()) {
	file, err := os.Create(name)
	must(b, err)
	must(b, pprof.StartCPUProfile(file))
	v, err := verifier.New(s.Ledger, s.Broker, &verifier.Options{Topology: s.Topology, Logger: quiet})
	must(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	return func() {
		cancel()
		must(b, <-ended)
		pprof.StopCPUProfile()
		must(b, file.Close())
	}
}

// shovel starts a shovel from one queue to another. Its messages leave rows in
// the ledger, which the next verifier's round does not meet: no message asks.
func shovel(b *testing.B, broker *servers.RabbitMQ, from, to string) (stop func()) {
	definition, err := json.Marshal(map[string]any{
		"src-protocol": "amqp091", "src-uri": "amqp://", "src-queue": from, "src-queue-args": map[string]any{},
		"dest-protocol": "amqp091", "dest-uri": "amqp://", "dest-queue": to,
		"ack-mode": "on-confirm", "src-prefetch-count": 1000,
	})
	must(b, err)
	ctl := func(args ...string) {
		_, err := broker.Ctl(context.Background(), args...)
		must(b, err)
	}
	delete := func() { ctl("clear_parameter", "shovel", "bench") }
	ctl("set_parameter", "shovel", "bench", string(definition))
	return delete
}

// ownPostgres is a private server that waits for the disk, as in production.
func ownPostgres(b *testing.B) stage.Database {
	server := servertest.StartPostgres(b, nil)
	kind := stage.Postgres
	kind.URL = func(testing.TB) string { return server.URL() }
	return kind
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

var quiet = slog.New(slog.DiscardHandler)
