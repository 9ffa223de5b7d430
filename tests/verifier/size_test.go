package verifier_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// The sender's own limit is what the broker takes by default on every release, to the
// byte; what exceeds it touches neither the database nor the broker.
func TestTheLargestMessageIsDeliveredAndALargerOneIsNotRecorded(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	largest := stage.To(queue, "")
	largest.Publishing.Body = bytes.Repeat([]byte("x"), 16<<20)
	larger := largest
	larger.Publishing.Body = append(bytes.Clone(largest.Publishing.Body), 'x')
	tx, err := s.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sender.SendTx(t.Context(), bridge.SQL(tx), larger); !errors.Is(err, bridge.ErrInvalidMessage) {
		t.Errorf("a larger one: %v", err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := s.Rows(); n != 0 {
		t.Errorf("%d rows", n)
	}
	s.Commit(largest)
	s.Verify(verifier.Options{})
	if d := s.Receive(queue, 1)[0]; len(d.Body) != len(largest.Publishing.Body) {
		t.Errorf("the body has %d bytes", len(d.Body))
	}
}

// A broker that takes less than it did when messages were staged, as after an upgrade
// from 3.x to 4.x, refuses them at their targets, and in the verifier's own queues too.
// They stay in the staging queue, with or without a dead-letter exchange, whatever has
// become of their transactions.
func TestMessagesThatHaveBecomeTooLargeStayUntilTheBrokerTakesThem(t *testing.T) {
	t.Parallel()
	broker := servertest.StartRabbitMQ(t, nil)
	s := stage.On(t, stage.Postgres, broker.URL(), bridge.Topology{Queue: "staging"})
	queue := s.Queue("target", nil)
	ids := goodBatch(s, queue, many/10)
	// What is in flight beside a refused one comes twice: so each has a queue of its own.
	largeQueue, smallQueue := s.Queue("large", nil), s.Queue("small", nil)
	large := stage.To(largeQueue, strings.Repeat("x", 70_000))
	largeIDs := map[string]bool{s.Commit(large)[0].String(): true}
	open, late := s.Begin(large, stage.To(smallQueue, "small"))
	largeIDs[late[0].String()] = true
	never, _ := s.Begin(large)
	publish(t, s, amqp.Publishing{MessageId: "malformed"})
	publish(t, s, amqp.Publishing{MessageId: "large and malformed", Body: large.Publishing.Body})
	for id := range goodBatch(s, queue, many/10) {
		ids[id] = true
	}
	limit := func(bytes int) {
		t.Helper()
		if err := broker.SetMaxMessageSize(t.Context(), bytes); err != nil {
			t.Fatal(err)
		}
	}
	limit(66_000)
	refusals := make(chan struct{}, 1000)
	v := s.Verify(verifier.Options{Patience: 200 * time.Millisecond, HandBack: time.Second,
		Logger: slog.New(tellTale{slog.DiscardHandler, "message stays in its queue", refusals})})
	expectAll(t, s, queue, ids)
	s.Eventually("the small malformed one is dead", func() bool { return s.Depth(s.Topology.DeadQueue()) > 0 })
	s.Eventually("each of the four is refused again and again", func() bool { return len(refusals) >= 12 })
	s.Eventually("they are told of", func() bool { return v.State().Stranded > 0 })
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	expectAll(t, s, smallQueue, map[string]bool{late[1].String(): true})
	if err := never.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.Eventually("the one that was rolled back is dropped", func() bool { return v.Stats().Dropped > 0 })
	s.Eventually("the rows of the large ones are left", func() bool { return s.Rows() == len(largeIDs) })
	limit(128 << 20)
	s.Eventually("all are done", func() bool {
		return s.Rows() == 0 && s.Depth(s.Topology.Queue) == 0 && v.State().Held == 0 && v.Stats().DeadLettered >= 2
	})
	// One that was refused just before may have gone to the dead queue just after.
	dead := []string{"malformed", "large and malformed"}
	missing := maps.Clone(largeIDs)
	for _, id := range dead {
		missing[id] = true
	}
	for _, d := range s.Receive(largeQueue, s.Depth(largeQueue)) {
		if !largeIDs[d.MessageId] {
			t.Errorf("message %s was not committed for %s", d.MessageId, largeQueue)
		}
		delete(missing, d.MessageId)
	}
	for _, d := range s.Receive(s.Topology.DeadQueue(), s.Depth(s.Topology.DeadQueue())) {
		refused := largeIDs[d.MessageId] && d.Headers[wire.HeaderDeadReason] == wire.DeadRefused
		if !refused && !slices.Contains(dead, d.MessageId) {
			t.Errorf("message %s is in the dead queue: %v", d.MessageId, d.Headers)
		}
		delete(missing, d.MessageId)
	}
	if len(missing) > 0 {
		t.Errorf("%v have come nowhere", missing)
	}
	if n := v.Stats(); n.Sessions != 1 {
		t.Errorf("stats %+v", n)
	}
}

// A tellTale says that a line was logged.
type tellTale struct {
	slog.Handler
	message string
	logged  chan<- struct{}
}

func (h tellTale) Enabled(context.Context, slog.Level) bool { return true }

func (h tellTale) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, h.message) {
		select {
		case h.logged <- struct{}{}:
		default:
		}
	}
	return h.Handler.Handle(ctx, r)
}

// Memory is bounded in bytes too: of one transaction's large messages, far fewer than
// the prefetch allows, a verifier keeps no more than MaxBytes, and the others pass.
// It does not run beside other tests: they share the heap.
func TestBytesAreBounded(t *testing.T) {
	broker := servertest.StartRabbitMQ(t, nil)
	s := stage.On(t, stage.Postgres, broker.URL(), bridge.Topology{Queue: "staging"})
	large, queue := s.Queue("large", nil), s.Queue("target", nil)
	const n, size, most = 100, 1 << 20, 8 << 20
	body := strings.Repeat("x", size)
	messages := make([]bridge.Message, n)
	for i := range messages {
		messages[i] = stage.To(large, "")
		messages[i].Publishing.Body = []byte(body[:size-i])
		if i > 0 {
			messages[i].Publishing.Body = messages[0].Publishing.Body[:size-i]
		}
	}
	open, ids := s.Begin(messages...)
	before := heap()
	v := s.Verify(verifier.Options{MaxBytes: most, Patience: time.Second})
	held, grown := 0, 0
	look := func() {
		held, grown = max(held, v.State().Bytes), max(grown, heap()-before)
	}
	s.Eventually("all large ones have been there", func() bool {
		look()
		return v.Stats().SetAside >= n
	})
	expectAll(t, s, queue, goodBatch(s, queue, 1000))
	look()
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, id := range ids {
		want[id.String()] = true
	}
	expectAll(t, s, large, want)
	s.Eventually("the ledger is empty", func() bool { look(); return s.Rows() == 0 })
	t.Logf("held %d bytes at most, of %d; the heap grew by %d", held, most, grown)
	if held > most {
		t.Errorf("%d bytes were held, of %d at most", held, most)
	}
	if grown > 10*most {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	if n := v.Stats(); n.Sessions != 1 || n.DeadLettered+n.Dropped != 0 {
		t.Errorf("stats %+v", n)
	}
}

// heap is what is alive on it.
func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
