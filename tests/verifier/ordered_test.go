package verifier_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/sender"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

func orderedStage(t *testing.T, topology bridge.Topology) *stage.Stage {
	t.Helper()
	topology.Queue = "staging"
	if topology.OrderedShards == 0 {
		topology.OrderedShards = 2
	}
	return stage.On(t, stage.Postgres, servertest.Vhost(t), topology)
}

func inOrder(queue, key string, n int) bridge.Message {
	m := stage.To(queue, key+" "+strconv.Itoa(n))
	m.OrderKey = key
	return m
}

// countUp checks that the first copies of each key's messages count up by one, from 1 to n. It
// returns the number of further copies.
func countUp(t *testing.T, deliveries []amqp.Delivery, keys []string, n int) (again int) {
	t.Helper()
	seen, last := map[string]bool{}, map[string]int{}
	for _, d := range deliveries {
		if seen[d.MessageId] {
			again++
			continue
		}
		seen[d.MessageId] = true
		key, number, _ := strings.Cut(string(d.Body), " ")
		i, err := strconv.Atoi(strings.TrimRight(number, "."))
		if err != nil || i != last[key]+1 {
			t.Fatalf("key %s: %q came after %d", key, d.Body, last[key])
		}
		last[key] = i
	}
	for _, key := range keys {
		if last[key] != n {
			t.Errorf("key %s: %d have come, want %d", key, last[key], n)
		}
	}
	return again
}

// receiveFirsts receives until n different messages have come, including the ones in all. It
// returns duplicates too.
func receiveFirsts(t *testing.T, s *stage.Stage, queue string, n int, all ...amqp.Delivery) []amqp.Delivery {
	t.Helper()
	seen := map[string]bool{}
	for _, d := range all {
		seen[d.MessageId] = true
	}
	for len(seen) < n {
		d := s.Receive(queue, 1)[0]
		all = append(all, d)
		seen[d.MessageId] = true
	}
	return all
}

// send has one writer for each key. Its transactions send one or two messages and hold no lock:
// each begins after the last one has committed.
func send(t *testing.T, s *stage.Stage, queue string, keys []string, n int) {
	t.Helper()
	var writers sync.WaitGroup
	for _, key := range keys {
		writers.Go(func() {
			for i := 1; i <= n; {
				err := s.Sender.InTx(t.Context(), s.DB, nil, func(tx *sender.Tx) error {
					messages := []bridge.Message{inOrder(queue, key, i)}
					if i%3 == 0 && i < n {
						messages = append(messages, inOrder(queue, key, i+1))
					}
					if _, err := tx.Send(messages...); err != nil {
						return err
					}
					i += len(messages)
					return nil
				})
				if err != nil {
					t.Errorf("send: %v", err)
					return
				}
			}
		})
	}
	writers.Wait()
}

// An open transaction holds its own key and no other.
func TestAnOpenTransactionHoldsItsKeyOnly(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, bridge.Topology{OrderedShards: 1})
	queue := s.Queue("target", nil)
	var log servertest.Log
	v := s.Verify(verifier.Options{Patience: 100 * time.Millisecond, HandBack: 2 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	open, ids := s.Begin(inOrder(queue, "held", 1))
	for i := 2; i <= 5; i++ { // from writers that do not wait for each other
		s.Commit(inOrder(queue, "held", i))
	}
	const others = 40
	send(t, s, queue, []string{"other"}, others)
	all := receiveFirsts(t, s, queue, others)
	inTurn := func() { // no message has overtaken the first of its key
		t.Helper()
		if n := s.Depth(queue); n > 0 {
			all = append(all, s.Receive(queue, n)...)
		}
		countUp(t, all, nil, 0)
	}
	s.Eventually("the key is held", func() bool {
		inTurn()
		keys := v.State().Keys
		return len(keys) == 1 && keys[0].Key == "held" && keys[0].ID == ids[0].String() && keys[0].Messages == 4
	})
	// After the longest permitted hold, all messages come over another channel, in order.
	s.Eventually("the queue is consumed over other channels", func() bool {
		inTurn()
		return len(log.With(anotherChannel)) >= 2
	})
	if err := open.Commit(); err != nil {
		t.Fatal(err)
	}
	all = receiveFirsts(t, s, queue, others+5, all...)
	countUp(t, all, []string{"held"}, 5)
	again := countUp(t, all, []string{"other"}, others)
	// A message that is in flight when a channel is closed comes again. Of the other key this is
	// one message each time, since one is in flight at a time. It is forwarded twice, or dropped
	// as done.
	got, left := v.Stats(), len(log.With(anotherChannel))
	if got.Sessions != 1 || got.SetAside != 0 || again+int(got.Dropped) > left {
		t.Errorf("%d channels were left, %d messages came twice, stats %+v", left, again, got)
	}
}

// If both verifiers received messages, each would get every second one. The key's first message
// is not known to be committed while the others are.
func TestOneVerifierAtATimeGetsAnOrderedQueue(t *testing.T) {
	t.Parallel()
	for _, classic := range []bool{false, true} {
		t.Run(fmt.Sprintf("classic %t", classic), func(t *testing.T) {
			t.Parallel()
			s := orderedStage(t, bridge.Topology{Classic: classic, OrderedShards: 1})
			queue := s.Queue("target", nil)
			first, second := s.Verify(verifier.Options{}), s.Verify(verifier.Options{})
			open, _ := s.Begin(inOrder(queue, "held", 1))
			for i := 2; i <= 5; i++ {
				s.Commit(inOrder(queue, "held", i))
			}
			s.RollBack(inOrder(queue, "rolled back", 1))
			const others = 20
			send(t, s, queue, []string{"one", "other"}, others)
			countUp(t, s.Receive(queue, 2*others), []string{"one", "other"}, others)
			if err := open.Commit(); err != nil {
				t.Fatal(err)
			}
			countUp(t, s.Receive(queue, 5), []string{"held"}, 5)
			s.Eventually("the rolled-back one is dropped", func() bool { return first.Stats().Dropped+second.Stats().Dropped == 1 })
			first.Stop()
			second.Stop()
			if left, _, err := s.Left(); err != nil || left+s.Rows() != 0 {
				t.Errorf("%d messages and %d rows left, error %v", left, s.Rows(), err)
			}
		})
	}
}

// anotherChannel is the log message when a verifier has replaced a channel.
const anotherChannel = "an ordered queue is consumed over a new channel"

// A missing and a full target hold their keys, and no others.
func TestATargetThatTakesNothingHoldsItsKeysOnly(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, bridge.Topology{OrderedShards: 1})
	queue := s.Queue("target", nil)
	full := s.Queue("full", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	v := s.Verify(verifier.Options{Unroutable: time.Hour, Patience: 100 * time.Millisecond})
	const n = 10
	for i := 1; i <= n; i++ {
		s.Commit(inOrder("missing", "a", i), inOrder(full, "b", i), inOrder(queue, "c", i))
	}
	countUp(t, s.Receive(queue, n), []string{"c"}, n)
	s.Eventually("both keys are held", func() bool { return len(v.State().Keys) == 2 })
	missing := s.Queue("missing", nil)
	countUp(t, receiveFirsts(t, s, missing, n), []string{"a"}, n)
	countUp(t, receiveFirsts(t, s, full, n), []string{"b"}, n)
	if got := v.Stats(); got.SetAside != 0 || got.DeadLettered != 0 {
		t.Errorf("stats %+v", got)
	}
}

func TestAKeyGoesOnAfterItsDeadLetter(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, bridge.Topology{})
	queue := s.Queue("target", nil)
	s.Verify(verifier.Options{Unroutable: time.Second, Allow: []verifier.Allow{{RoutingKey: "target"}, {RoutingKey: "missing"}}})
	s.Commit(inOrder(queue, "k", 1), inOrder("forbidden", "k", 100), inOrder("missing", "k", 200), inOrder(queue, "k", 2))
	countUp(t, s.Receive(queue, 2), []string{"k"}, 2)
	dead := s.Receive(s.Topology.DeadQueue(), 2)
	for i, reason := range []string{wire.DeadNotAllowed, wire.DeadUnroutable} {
		if got := dead[i].Headers[wire.HeaderDeadReason]; got != reason || dead[i].Headers[wire.HeaderOrderKey] != "k" {
			t.Errorf("dead letter %d: reason %v, key %v", i, got, dead[i].Headers[wire.HeaderOrderKey])
		}
	}
}

func TestHoldKeysForwardsNothingPastAMessageThatWouldBeDead(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, bridge.Topology{})
	queue := s.Queue("target", nil)
	var log servertest.Log
	options := verifier.Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), HoldKeys: true, Unroutable: 500 * time.Millisecond, Allow: []verifier.Allow{{RoutingKey: "target"}, {RoutingKey: "missing"}}}
	v := s.Verify(options)
	s.Commit(inOrder(queue, "a", 1), inOrder("forbidden", "a", 2), inOrder(queue, "a", 3),
		inOrder("missing", "b", 1), inOrder(queue, "b", 2), inOrder(queue, "c", 1))
	got := s.Receive(queue, 2)
	if bodies := []string{string(got[0].Body), string(got[1].Body)}; !slices.Contains(bodies, "a 1") || !slices.Contains(bodies, "c 1") {
		t.Errorf("got %q", bodies)
	}
	s.Eventually("the time of the missing one is over twice", func() bool {
		return len(slices.DeleteFunc(log.With("reason=unroutable"), func(line string) bool { return !strings.Contains(line, "order_key=") })) >= 2
	})
	if held := v.State().Keys; len(held) != 2 {
		t.Errorf("held %+v", held)
	}
	missing := s.Queue("missing", nil)
	s.Receive(missing, 1)
	if d := s.Receive(queue, 1)[0]; string(d.Body) != "b 2" {
		t.Errorf("got %q", d.Body)
	}
	if n := v.Stats().DeadLettered + int64(s.Depth(queue)); n != 0 {
		t.Errorf("%d are dead or have overtaken", n)
	}
	v.Stop()
	options.Allow = append(options.Allow, verifier.Allow{RoutingKey: "forbidden"})
	forbidden := s.Queue("forbidden", nil)
	s.Verify(options)
	s.Receive(forbidden, 1)
	if d := s.Receive(queue, 1)[0]; string(d.Body) != "a 3" {
		t.Errorf("got %q", d.Body)
	}
}

// A full queue behind an exchange nacks a message that holds its key. Each attempt gives the other
// queues a copy, so a pause comes before it, even if Options.Copies allows one attempt.
func TestAMessageThatHoldsItsKeyPausesBetweenItsAttempts(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, bridge.Topology{})
	exchange, _, _ := fanOut(t, s)
	var log servertest.Log
	s.Verify(verifier.Options{HoldKeys: true, Copies: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	s.Commit(bridge.Message{Exchange: exchange, OrderKey: "k", Publishing: amqp.Publishing{Body: []byte("1")}})
	var held []string
	s.Eventually("the message holds its key for the third time", func() bool {
		held = log.With("holds its order key")
		return len(held) >= 3
	})
	if took := timeOf(t, held[2]).Sub(timeOf(t, held[0])); took < 1500*time.Millisecond {
		t.Errorf("two more attempts took %v, and each should wait for a second", took)
	}
}

// timeOf returns the time of a line of the log.
func timeOf(t *testing.T, line string) time.Time {
	t.Helper()
	word, _, _ := strings.Cut(line, " ")
	at, err := time.Parse(time.RFC3339, strings.TrimPrefix(word, "time="))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// Only a few of the messages fit, so the others come again and again.
func TestLargeMessagesKeepTheirOrderInLittleRoom(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, bridge.Topology{OrderedShards: 1})
	queue := s.Queue("target", nil)
	const n, room = 60, 100 << 10
	for i := 1; i <= n; i += 3 {
		var messages []bridge.Message
		for j := i; j < i+3; j++ {
			m := inOrder(queue, "k", j)
			m.Publishing.Body = append(m.Publishing.Body, strings.Repeat(".", j%4*room/4)...)
			messages = append(messages, m)
		}
		s.Commit(messages...)
	}
	var log servertest.Log
	v := s.Verify(verifier.Options{MaxBytes: 4 * room, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	again := countUp(t, receiveFirsts(t, s, queue, n), []string{"k"}, n)
	channels := len(log.With(anotherChannel))
	if got := v.Stats(); got.Sessions != 1 || channels == 0 {
		t.Errorf("stats %+v, %d channels were left", got, channels)
	}
	t.Logf("%d channels were left, and %d messages came twice", channels, again)
}

// One day the row of a message that holds its key is older than Options.SweepAge. To a verifier
// that is not the queue's active consumer the queue looks empty; RabbitMQ does not even count the
// waiting consumers of a quorum queue.
func TestNoVerifierSweepsARowThatAnotherHoldsForItsKey(t *testing.T) {
	t.Parallel()
	s := orderedStage(t, bridge.Topology{OrderedShards: 1})
	var held, log servertest.Log
	options := verifier.Options{HoldKeys: true, SweepAge: 2 * time.Hour, Allow: []verifier.Allow{{RoutingKey: "target"}},
		Logger: slog.New(slog.NewTextHandler(&held, nil))}
	s.Commit(inOrder("forbidden", "k", 1))
	s.Verify(options)
	s.Eventually("the key is held", func() bool { return len(held.With("holds its order key")) > 0 })
	if _, err := s.DB.ExecContext(t.Context(), `UPDATE bridge_ledger SET recorded_at = now() - interval '3 hours'`); err != nil {
		t.Fatal(err)
	}
	if n := s.Depth(s.Topology.OrderedQueues()[0]); n != 0 {
		t.Fatalf("%d messages are ready", n)
	}
	options.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	second := s.Verify(options)
	s.Eventually("the second one has looked", func() bool { return len(log.With("no sweep")) > 0 || second.Stats().Swept > 0 })
	if n := s.Rows(); n != 1 {
		t.Errorf("%d rows are left", n)
	}
}
