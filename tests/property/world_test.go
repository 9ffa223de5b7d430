package property_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// limit bounds every wait. It is paid again for every history that rapid tries
// when it looks for the shortest that fails.
const limit = 20 * time.Second

// patience is the verifiers': short, so that some transactions are slower.
const patience = 30 * time.Millisecond

// A world serves many checks, one after the other: each has a target queue of its
// own. The verifiers reach the broker through a valve.
type world struct {
	*stage.Stage
	valve  *servertest.Valve
	broker *bridge.Broker // of the verifiers
	checks int
	dirty  bool // the last check has failed, and may have left something
}

func newWorld(t *testing.T, kind stage.Database) *world {
	t.Helper()
	s := stage.New(t, kind)
	address, err := url.Parse(s.AMQP)
	if err != nil {
		t.Fatal(err)
	}
	valve := servertest.NewValve(t, address.Host)
	address.Host = valve.Addr()
	broker, err := bridge.Dial(t.Context(), address.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	return &world{Stage: s, valve: valve, broker: broker}
}

// mostOpen is how many transactions may be open at the same time: on SQLite a
// second one would wait for the first.
func (w *world) mostOpen() int {
	if w.Kind.Name == stage.SQLite.Name {
		return 1
	}
	return 5
}

func (w *world) begin(t *rapid.T) *history {
	if w.dirty {
		for _, queue := range []string{w.Topology.Queue, w.Topology.WaitingQueue(), w.Topology.DeadQueue()} {
			_, err := w.Channel.QueuePurge(queue, false)
			must(t, "purge", err)
		}
		_, err := w.DB.ExecContext(context.Background(), `DELETE FROM bridge_ledger`)
		must(t, "clear the ledger", err)
	}
	w.dirty = true
	w.checks++
	return &history{
		world:     w,
		target:    w.Queue(fmt.Sprintf("target %d", w.checks), nil),
		verifier:  w.startVerifier(t),
		mayCut:    rapid.Bool().Draw(t, "connections may be cut"),
		committed: make(map[uuid.UUID]bool),
		attempts:  make(map[uuid.UUID]int),
	}
}

// abandon leaves nothing running, whether the check has passed or not.
func (h *history) abandon() {
	for _, tx := range h.open {
		_ = tx.Rollback() // only after a failure
	}
	for _, v := range append(h.retired, h.verifier) {
		v.cancel()
		<-v.ended
	}
	_, _ = h.Channel.QueueDelete(h.target, false, false, false)
}

// finish lets verifiers judge all that is staged, until both queues are empty.
func (h *history) finish(t *rapid.T) {
	for _, v := range append(h.retired, h.verifier) {
		v.stop(t)
	}
	for left := h.handedBack(t); left > 0; left = h.handedBack(t) {
		h.verifier = h.startVerifier(t)
		h.eventually(t, "all that was left is judged", func() bool { return h.verifier.judged() >= left })
		h.verifier.stop(t)
	}
}

// handedBack waits until no consumer is left, and with it nothing unacked, and
// returns how many messages the staging and the waiting queue hold.
func (h *history) handedBack(t *rapid.T) int {
	n := 0
	for _, queue := range []string{h.Topology.Queue, h.Topology.WaitingQueue()} {
		var q amqp.Queue
		h.eventually(t, "no consumer at "+queue, func() bool {
			var err error
			q, err = h.Channel.QueueDeclarePassive(queue, true, false, false, false, nil)
			must(t, "inspect queue", err)
			return q.Consumers == 0
		})
		n += q.Messages
	}
	return n
}

// delivered takes everything from the target and counts the copies.
func (h *history) delivered(t *rapid.T) map[uuid.UUID]int {
	copies := make(map[uuid.UUID]int)
	for {
		const autoAck = true
		d, ok, err := h.Channel.Get(h.target, autoAck)
		must(t, "get", err)
		if !ok {
			return copies
		}
		if string(d.Body) != h.target || len(d.Headers) > 0 {
			t.Errorf("message %q has changed: %q, headers %v", d.MessageId, d.Body, d.Headers)
		}
		copies[uuid.MustParse(d.MessageId)]++
	}
}

// eventually polls what no server will signal.
func (w *world) eventually(t *rapid.T, what string, holds func() bool) {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for timeout := time.After(limit); !holds(); {
		select {
		case <-ticker.C:
		case <-timeout:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// A worker is a running verifier.
type worker struct {
	*verifier.Verifier
	cancel context.CancelFunc
	ended  chan struct{}
}

// startVerifier does not wait until the verifier has started: an open transaction
// may keep it from that. It is small, so that all its limits are met.
func (w *world) startVerifier(t *rapid.T) *worker {
	v, err := verifier.New(w.Ledger, w.broker, &verifier.Options{
		Topology:        w.Topology,
		Prefetch:        20,
		Waiting:         5,
		WaitingPrefetch: 10,
		Settlers:        4,
		Patience:        patience,
		SettleWait:      patience,
		Logger:          slog.New(slog.DiscardHandler),
	})
	must(t, "new verifier", err)
	ctx, cancel := context.WithCancel(context.Background())
	k := &worker{v, cancel, make(chan struct{})}
	go func() {
		defer close(k.ended)
		for ctx.Err() == nil { // a cut while it starts ends it
			_ = v.Run(ctx)
		}
	}()
	return k
}

func (k *worker) judged() int {
	stats := k.Stats()
	return int(stats.Forwarded + stats.Dropped)
}

func (k *worker) stop(t *rapid.T) {
	k.cancel()
	select {
	case <-k.ended:
	case <-time.After(limit):
		t.Fatalf("the verifier does not stop")
	}
}
