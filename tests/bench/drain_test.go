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
// rates, of the rounds' ratios, and of the processor time that a message took in
// all processes together, which says more on a machine that others use as well.
func BenchmarkDrain(b *testing.B) {
	for b.Loop() {
		broker := servertest.StartRabbitMQ(b, &servers.RabbitMQOptions{Plugins: []string{"rabbitmq_shovel"}})
		s := stage.On(b, ownPostgres(b), broker.URL(), stagingTopology)
		worker := build(b)
		var verified, shovelled []drained
		var ratios []float64
		for round := range rounds {
			v := drain(b, s, fmt.Sprint("verified", round), func(string) func() { return verify(b, s, worker) })
			o := drain(b, s, fmt.Sprint("shovelled", round), func(queue string) func() {
				return shovel(b, broker, s.Topology.Queue, queue)
			})
			verified, shovelled, ratios = append(verified, v), append(shovelled, o), append(ratios, v.rate/o.rate)
			b.Logf("round %d: verifier %s; shovel %s; ratio %.2f", round+1, v, o, ratios[round])
		}
		rate, time := func(d drained) float64 { return d.rate }, drained.total
		b.ReportMetric(median(verified, rate), "verifier-msg/s")
		b.ReportMetric(median(shovelled, rate), "shovel-msg/s")
		b.ReportMetric(median(ratios, func(r float64) float64 { return r }), "ratio")
		b.ReportMetric(median(verified, time), "verifier-µs/msg")
		b.ReportMetric(median(shovelled, time), "shovel-µs/msg")
		b.ReportMetric(0, "ns/op")
	}
}

// drained is what one round took: messages per second between the first message
// and the last, and the processor time of each kind of process, in µs per message.
type drained struct {
	rate                     float64
	broker, database, worker float64
}

func (d drained) total() float64 { return d.broker + d.database + d.worker }

func (d drained) String() string {
	return fmt.Sprintf("%.0f/s, processor µs per message: broker %.1f, database %.1f, worker %.1f",
		d.rate, d.broker, d.database, d.worker)
}

// drain stages the backlog, lets move empty it into the queue, and measures.
func drain(b *testing.B, s *stage.Stage, queue string, move func(queue string) (stop func())) drained {
	b.Helper()
	s.Queue(queue, quorum)
	fill(s, queue)
	broker, database, worker := processorTime("beam.smp"), processorTime("postgres"), processorTime("verifier")
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
			d := drained{
				rate:     float64(n-before) / time.Since(first).Seconds(),
				broker:   perMessage(processorTime("beam.smp") - broker),
				database: perMessage(processorTime("postgres") - database),
				worker:   perMessage(processorTime("verifier") - worker),
			}
			_, err := s.Channel.QueueDelete(queue, false, false, false)
			must(b, err)
			return d
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

func median[T any](rounds []T, of func(T) float64) float64 {
	values := make([]float64, len(rounds))
	for i, round := range rounds {
		values[i] = of(round)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

var quiet = slog.New(slog.DiscardHandler)
