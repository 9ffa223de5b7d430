package property_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// limit bounds every wait; twice the limit bounds a whole history.
const limit = servertest.Patience

// patience is the verifiers' patience: short, so that some transactions outlast it.
const patience = 30 * time.Millisecond

// world serves many checks, one after the other. The verifiers reach the broker through a valve.
type world struct {
	*stage.Stage
	target string
	valve  *servertest.Valve
	broker *bridge.Broker // of the verifiers
	singly *sender.Sender // stages each message separately
	dirty  bool           // the last check has failed and may have left messages or rows
}

func newWorld(t *testing.T, kind stage.Database) *world {
	t.Helper()
	s := stage.On(t, kind, servertest.Vhost(t), bridge.Topology{Queue: "staging", OrderedShards: 1})
	valve, address := servertest.Through(t, s.AMQP)
	broker, err := bridge.Dial(t.Context(), address, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	return &world{Stage: s, target: s.Queue("target", nil), valve: valve, broker: broker, singly: s.NewSender(sender.Options{Carry: sender.CarryNever, GroupMessages: 1})}
}

// mostOpen returns how many transactions may be open at the same time. On SQLite a second one
// would wait for the first.
func (w *world) mostOpen() int {
	if w.Kind.Name == stage.SQLite.Name {
		return 1
	}
	return 5
}

func (w *world) begin(t *rapid.T) *history {
	if w.dirty {
		for _, queue := range append(w.Topology.OrderedQueues(), w.Topology.Queue, w.Topology.WaitingQueue(), w.Topology.DeadQueue(), w.target) {
			_, err := w.Channel.QueuePurge(queue, false)
			must(t, "purge", err)
		}
		_, err := w.DB.ExecContext(context.Background(), `DELETE FROM bridge_ledger`)
		must(t, "clear the ledger", err)
	}
	w.dirty = true
	h := &history{
		world:     w,
		sender:    w.Sender,
		verifier:  w.startVerifier(t),
		mayCut:    rapid.Bool().Draw(t, "connections may be cut"),
		committed: make(map[uuid.UUID]bool),
		keyed:     make(map[uuid.UUID]*keyed),
		copies:    make(map[uuid.UUID]int),
		grouped:   make(map[uuid.UUID]bool),
	}
	h.ctx, h.cancel = context.WithTimeout(context.Background(), 2*limit)
	if rapid.Bool().Draw(t, "each message is staged by itself") {
		h.sender = w.singly
	}
	return h
}

// abandon leaves nothing running, and explains a failed check.
func (h *history) abandon(t *rapid.T) {
	if t.Failed() {
		t.Log(h.state())
	}
	for _, tx := range h.open {
		_ = tx.Rollback() // only after a failure
	}
	h.cancel()
	for _, v := range h.verifiers() {
		v.cancel()
	}
	for _, v := range h.verifiers() {
		h.stop(t, v)
	}
}

// finish lets verifiers judge all staged messages, until all queues are empty.
func (h *history) finish(t *rapid.T) {
	for _, v := range h.verifiers() {
		h.stop(t, v)
	}
	h.Finish(t, func(left int) {
		h.retired = append(h.retired, h.verifier)
		h.verifier = h.startVerifier(t)
		h.Evidence()
		servertest.Eventually(t, "all messages left are judged", func() bool { return h.verifier.judged() > left })
		h.stop(t, h.verifier)
	})
}

// worker is a running verifier.
type worker struct {
	*verifier.Verifier
	cancel context.CancelFunc
	ended  chan struct{}
	log    *servertest.Log
}

// startVerifier does not wait until the verifier has started, since an open transaction may
// prevent the start. The verifier is small, so that it reaches all its limits.
func (w *world) startVerifier(t *rapid.T) *worker {
	log := new(servertest.Log)
	v, err := verifier.New(w.Judging(), w.broker, &verifier.Options{
		Topology:       w.Topology,
		Prefetch:       10,
		Settlers:       4,
		Patience:       patience,
		SettleWait:     patience,
		ConfirmTimeout: limit, // a late confirm costs no second copy
		Drain:          limit,
		Logger:         slog.New(slog.NewTextHandler(log, nil)),
	})
	must(t, "new verifier", err)
	ctx, cancel := context.WithCancel(context.Background())
	k := &worker{v, cancel, make(chan struct{}), log}
	go func() {
		defer close(k.ended)
		for ctx.Err() == nil { // a cut during the start ends Run
			_ = v.Run(ctx)
		}
	}()
	return k
}

func (k *worker) judged() int {
	stats := k.Stats()
	return int(stats.Forwarded + stats.Dropped)
}

func (h *history) stop(t *rapid.T, k *worker) {
	k.cancel()
	select {
	case <-k.ended:
	case <-time.After(limit):
		t.Fatalf("not in time: a verifier stops")
	}
}

// verifiers returns all verifiers of this history.
func (h *history) verifiers() []*worker { return append(slices.Clip(h.retired), h.verifier) }

// state describes queues, transactions and verifiers, with the verifiers' logs.
func (h *history) state() string {
	var all strings.Builder
	fmt.Fprintf(&all, "%d transactions open, %d messages committed\n%s", len(h.open), len(h.committed), h.State())
	for _, v := range h.verifiers() {
		fmt.Fprintf(&all, "a verifier: %+v\n%s", v.Stats(), v.log)
	}
	return all.String()
}
