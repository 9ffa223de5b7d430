package verifier_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// Starting a broker costs the most, so all tests that change a whole server share one. Each has
// queues of its own, and leaves the server accepting its messages.
func TestWithABrokerOfItsOwn(t *testing.T) {
	t.Parallel()
	broker := servertest.StartRabbitMQ(t, nil)
	limit := func(bytes int) {
		if err := broker.SetMaxMessageSize(t.Context(), bytes); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("a carried message that it refuses stops no other", func(t *testing.T) { testCarriedAndRefused(t, broker, limit) })
	t.Run("messages that have become too large stay until it takes them", func(t *testing.T) { testTooLarge(t, broker, limit) })
	t.Run("groups become as small as it takes them", func(t *testing.T) { testSmallerGroups(t, broker, limit) })
	t.Run("a verifier stops during an alarm", func(t *testing.T) { testStopDuringAlarm(t, broker) })
	t.Run("a verifier that only stages reports an alarm", func(t *testing.T) { testAlarmWhileStaging(t, broker) })
	t.Run("a verifier starts without classic queues", func(t *testing.T) { testNoClassicQueues(t, broker) })

	if err := broker.SetConsumerTimeout(t.Context(), consumerTimeout); err != nil {
		t.Fatal(err)
	}
	if _, err := broker.Ctl(t.Context(), "set_policy", "small", ".*", fmt.Sprintf(`{"delivery-limit":%d}`, deliveryLimit), "--apply-to", "queues"); err != nil {
		t.Fatal(err)
	}
	for _, classic := range []bool{false, true} {
		t.Run(fmt.Sprintf("waiting for long uses up neither timeout nor delivery limit, classic %t", classic), func(t *testing.T) {
			t.Parallel()
			testWaitingForLong(t, broker, bridge.Topology{Queue: fmt.Sprintf("staging-%t", classic), Classic: classic})
		})
	}
	t.Run("without the hand-back the timeout strikes", func(t *testing.T) {
		t.Parallel()
		testConsumerTimeout(t, broker)
	})
}

// A verifier stages all of these messages from their rows. The broker refuses some.
func testCarriedAndRefused(t *testing.T, broker *servers.RabbitMQ, limit func(bytes int)) {
	limit(66_000)
	s := stage.On(t, stage.Postgres, broker.URL(), bridge.Topology{Queue: "carried"})
	queue := s.Queue("carried-target", nil)
	good, large := map[string]bool{}, map[string]bool{}
	for i := range 60 {
		add(good, s.CommitCarried(some(queue, 10)...)...)
		if i%20 == 10 {
			add(large, s.CommitCarried(stage.To(queue, strings.Repeat("x", 70_000)))...)
		}
	}
	v := s.Verify(verifier.Options{})
	expectAll(t, s, queue, good)
	s.Eventually("only the rows of the refused ones are left", func() bool { return s.Rows() == len(large) })
	if n := v.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions", n)
	}
	limit(100_000)
	expectAll(t, s, queue, large)
	s.Eventually("all rows are gone", func() bool { return s.Rows() == 0 })
}

// A broker whose size limit has become smaller, as after an upgrade from 3.x to 4.x, refuses
// staged messages at their targets and in the verifier's own queues. These messages stay in the
// staging queue, with or without a dead-letter exchange, whatever the outcome of their
// transactions.
func testTooLarge(t *testing.T, broker *servers.RabbitMQ, limit func(bytes int)) {
	s := stage.On(t, stage.Postgres, broker.URL(), bridge.Topology{Queue: "size"})
	queue := s.Queue("size-target", nil)
	ids := goodBatch(s, queue, 50)
	// Messages in flight beside a refused one come twice, so each has a queue of its own.
	largeQueue, smallQueue := s.Queue("large", nil), s.Queue("small", nil)
	large := stage.To(largeQueue, strings.Repeat("x", 70_000))
	largeIDs := map[string]bool{}
	add(largeIDs, s.Commit(large)...)
	open, late := s.Begin(large, stage.To(smallQueue, "small"))
	add(largeIDs, late[0])
	never, _ := s.Begin(large)
	publish(t, s, amqp.Publishing{MessageId: "malformed"})
	publish(t, s, amqp.Publishing{MessageId: "large and malformed", Body: large.Publishing.Body})
	maps.Copy(ids, goodBatch(s, queue, 50))
	limit(66_000)
	refusals := make(chan struct{}, 1000)
	v := s.Verify(verifier.Options{Patience: 200 * time.Millisecond, HandBack: time.Second,
		Logger: slog.New(logSignal{slog.DiscardHandler, "broker accepts the message in no queue", refusals})})
	expectAll(t, s, queue, ids)
	s.Eventually("the small malformed one is dead", func() bool { return s.Depth(s.Topology.DeadQueue()) > 0 })
	s.Eventually("each of the four is refused again and again", func() bool { return len(refusals) >= 12 })
	s.Eventually("they are reported", func() bool { return v.State().Waiting.TooLarge > 0 })
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
	// A message that was refused just before may have been dead-lettered just after.
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

// The broker takes each message, but not the larger groups of the sender and the waiting queue. One
// refusal is enough: it names the limit.
func testSmallerGroups(t *testing.T, broker *servers.RabbitMQ, limit func(bytes int)) {
	limit(8000)
	defer limit(128 << 20)
	s := stage.On(t, stage.Postgres, broker.URL(), bridge.Topology{Queue: "groups"})
	queue := s.Queue("groups-target", nil)
	var messages []bridge.Message
	for range 4 {
		messages = append(messages, stage.To(queue, strings.Repeat("x", 3000)))
	}
	send := func() (ids []uuid.UUID, tx *sql.Tx, err error) {
		if tx, err = s.DB.BeginTx(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		ids, err = s.Sender.SendTx(t.Context(), bridge.SQL(tx), messages...)
		return ids, tx, err
	}
	_, refused, err := send()
	if !bridge.Retryable(err) || bridge.Refusal(err) == nil {
		t.Errorf("a group that is too large: %v", err)
	}
	_ = refused.Rollback()
	want := map[string]bool{}
	var open []*sql.Tx
	for range 10 {
		ids, tx, err := send()
		if err != nil {
			t.Fatal(err)
		}
		add(want, ids...)
		open = append(open, tx)
	}
	closed := make(chan struct{}, 1000)
	v := s.Verify(verifier.Options{Patience: 100 * time.Millisecond, HandBack: 300 * time.Millisecond,
		Logger: slog.New(logSignal{slog.DiscardHandler, "publishing channel closed", closed})})
	s.Eventually("all were set aside several times", func() bool { return v.Stats().SetAside >= int64(5*len(want)) })
	if n := len(closed); n > 1 {
		t.Errorf("the broker has closed %d channels", n)
	}
	for _, tx := range open {
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	expectAll(t, s, queue, want)
}

// While the broker accepts no message, a message waits to be published. It must not keep the
// session from ending.
func testStopDuringAlarm(t *testing.T, server *servers.RabbitMQ) {
	s := stage.On(t, stage.Postgres, server.URL(), bridge.Topology{Queue: "alarm"})
	queue := s.Queue("alarm-target", nil)
	blocked := make(chan struct{}, 100)
	connectionBlocked := servertest.Method{10, 60}
	_, through := servertest.NewGate(t, s.AMQP, func(f servertest.Frame) bool {
		if f.Reply && f.Method == connectionBlocked {
			blocked <- struct{}{}
		}
		return false
	})
	v, err := verifier.New(s.Ledger, dial(t, through), &verifier.Options{Topology: s.Topology, Logger: stage.Logger(t), Drain: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	s.Commit(stage.To(queue, "warms up"))
	s.Eventually("a message is forwarded", func() bool { return v.Stats().Forwarded == 1 })
	first, _ := s.Begin(stage.To(queue, "blocks the connection"))
	second, _ := s.Begin(stage.To(queue, "waits"))
	s.Eventually("both wait", func() bool { return v.State().Waiting.Transaction == 2 })
	servertest.Alarm(t, server, true)
	if err := first.Commit(); err != nil {
		t.Fatal(err)
	}
	servertest.Next(t, "the broker blocks the publishing connection", blocked)
	if err := second.Commit(); err != nil {
		t.Fatal(err)
	}
	s.Eventually("both are judged", func() bool { return v.State().Waiting.Transaction == 0 })
	s.Eventually("the state says that the broker takes nothing", func() bool { return v.State().Blocked != "" })
	stop()
	select {
	case <-ended: // with two messages that are not done
	case <-time.After(servertest.Patience):
		t.Error("it does not stop")
		servertest.Alarm(t, server, false)
		servertest.Next(t, "it stops after the alarm", ended)
	}
}

// No message is forwarded, so the broker reports the alarm only to the connection that stages.
func testAlarmWhileStaging(t *testing.T, server *servers.RabbitMQ) {
	s := stage.On(t, stage.Postgres, server.URL(), bridge.Topology{Queue: "staging-alarm"})
	queue := s.Queue("staging-alarm-target", nil)
	v := s.Verify(verifier.Options{})
	s.Eventually("a session has begun", func() bool { return !v.State().Session.IsZero() })
	servertest.Alarm(t, server, true)
	want := map[string]bool{}
	add(want, s.CommitCarried(stage.To(queue, "waits in its row"))...)
	s.Eventually("the state says that the broker takes nothing", func() bool { return v.State().Blocked != "" })
	servertest.Alarm(t, server, false)
	expectAll(t, s, queue, want)
	s.Eventually("the state has no alarm any more", func() bool { return v.State().Blocked == "" })
}

// The ledger queue, which keeps verifiers of another ledger away, is a classic queue. No message
// depends on it.
func testNoClassicQueues(t *testing.T, broker *servers.RabbitMQ) {
	if !servertest.FeaturesOf(t, broker.URL()).ClassicCanBeOff {
		t.Skip("this release always has classic queues")
	}
	s := stage.On(t, stage.Postgres, broker.URL(), bridge.Topology{Queue: "no-classic"})
	queue := s.Queue("no-classic-target", nil)
	allow := func(on bool) {
		if err := broker.SetClassicQueues(context.Background(), on); err != nil {
			t.Error(err)
		}
	}
	defer allow(true)
	allow(false)
	unclaimed := make(chan struct{}, 1)
	s.Verify(verifier.Options{Logger: slog.New(logSignal{slog.DiscardHandler, "cannot keep verifiers of another ledger from the queue", unclaimed})})
	expectAll(t, s, queue, goodBatch(s, queue, 5))
	servertest.Next(t, "the log says that the queue is not claimed", unclaimed)
}

const (
	consumerTimeout = 8 * time.Second
	deliveryLimit   = 3
)

// However long a message waits, for its transaction or its target, neither the consumer timeout
// nor the delivery limit is reached: a message that is set aside is new to the broker. The limit
// is three here, not a million.
func testWaitingForLong(t *testing.T, broker *servers.RabbitMQ, topology bridge.Topology) {
	s := stage.On(t, stage.Postgres, broker.URL(), topology)
	if !topology.Classic {
		limitIsReal(t, s)
	}
	queue, missing := s.Queue(topology.Queue+"-target", nil), topology.Queue+"-missing"
	full := s.Queue(topology.Queue+"-full", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	if err := s.Channel.PublishWithContext(t.Context(), "", full, false, false, amqp.Publishing{}); err != nil {
		t.Fatal(err)
	}
	options := verifier.Options{Patience: 200 * time.Millisecond, HandBack: 500 * time.Millisecond, Unroutable: time.Hour}
	v := s.Verify(options)
	began := time.Now()
	open, _ := s.Begin(stage.To(queue, "1"), stage.To(queue, "2"), stage.To(queue, "3"))
	s.Commit(stage.To(full, ""))
	s.Commit(stage.To(missing, ""))
	const rounds, waiting = 12, 5
	s.Eventually("they were set aside many times, for longer than the timeout", func() bool {
		return v.Stats().SetAside >= int64(rounds*waiting) && time.Since(began) > consumerTimeout+consumerTimeout/2
	})
	if n := v.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions: the consumer timeout has struck", n)
	}
	t.Logf("%d times set aside in %v", v.Stats().SetAside, time.Since(began))

	// The end of a verifier hands back, which may count as a delivery (servertest.Features):
	// once, or twice if the verifier gets the message again before its channel ends.
	v.Stop()
	var held []amqp.Delivery
	there := 0
	s.Eventually("all are in the waiting queue, alone or in groups", func() bool {
		d, ok, err := s.Channel.Get(topology.WaitingQueue(), false)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return there == waiting
		}
		if n, _ := d.Headers["x-delivery-count"].(int64); n > 2 {
			t.Errorf("delivered %d times", n+1)
		}
		members, err := wire.Members(d)
		if err != nil {
			t.Fatal(err)
		}
		there += len(members)
		held = append(held, d)
		return false
	})
	for _, d := range held {
		if err := d.Nack(false, true); err != nil {
			t.Fatal(err)
		}
	}

	// All of them still arrive.
	s.Queue(missing, nil)
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	v = s.Verify(options)
	s.Receive(queue, 3)
	s.Receive(missing, 1)
	s.Receive(full, 2)
	s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	if n := s.Depth(topology.DeadQueue()); n != 0 || v.Stats().DeadLettered != 0 {
		t.Errorf("%d in the dead queue", n)
	}
}

// limitIsReal shows that a message that is delivered too often is dead-lettered.
func limitIsReal(t *testing.T, s *stage.Stage) {
	t.Helper()
	if err := s.Channel.PublishWithContext(t.Context(), "", s.Topology.Queue, false, false, amqp.Publishing{}); err != nil {
		t.Fatal(err)
	}
	s.WaitDepth(s.Topology.Queue, 1)
	deliveries := 0
	s.Eventually("the limit strikes", func() bool {
		d, ok, err := s.Channel.Get(s.Topology.Queue, false)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			deliveries++
			if err := d.Reject(true); err != nil { // counts in every release
				t.Fatal(err)
			}
		}
		return s.Depth(s.Topology.DeadQueue()) == 1
	})
	s.Receive(s.Topology.DeadQueue(), 1)
	if deliveries != deliveryLimit+1 {
		t.Errorf("%d deliveries with a limit of %d", deliveries, deliveryLimit)
	}
}

// The session restarts and loses nothing. So the timeout of the test before is real.
func testConsumerTimeout(t *testing.T, broker *servers.RabbitMQ) {
	s := stage.On(t, stage.Postgres, broker.URL(), bridge.Topology{Queue: "staging-held"})
	queue := s.Queue("held-target", nil)
	var a recordingObserver
	v := s.Verify(verifier.Options{Patience: time.Hour, HandBack: time.Hour, Observer: &a})
	tx, _ := s.Begin(stage.To(queue, "x"))
	s.Eventually("the session has ended", func() bool { return v.Stats().Sessions > 1 })
	reason := "acknowledgement on channel"
	if servertest.FeaturesOf(t, s.AMQP).TimeoutCancels { // and gives no reason
		reason = "consumer_timeout"
	}
	var ends []error
	s.Eventually("the reason is reported", func() bool { ends = a.ends(); return len(ends) > 0 })
	if err := ends[0]; !strings.Contains(err.Error(), reason) || !errors.Is(err, bridge.ErrUnavailable) {
		t.Errorf("the session ended with %v", err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	s.Receive(queue, 1)
}
