package verifier_test

import (
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
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
	"github.com/twoqueue/twoqueue/tests/stage"
	"github.com/twoqueue/twoqueue/verifier"
)

// goodBatch commits n messages for queue and returns their IDs.
func goodBatch(s *stage.Stage, queue string, n int) map[string]bool {
	ids := map[string]bool{}
	add(ids, s.Commit(some(queue, n)...)...)
	return ids
}

// expectAll receives from queue until each of ids has come. Other messages are an error;
// duplicates are not.
func expectAll(t *testing.T, s *stage.Stage, queue string, ids map[string]bool) {
	t.Helper()
	deliveries, stop := s.Consume(queue)
	defer stop()
	missing := len(ids)
	seen := map[string]bool{}
	timeout := time.After(stage.Patience)
	for missing > 0 {
		select {
		case d := <-deliveries:
			if !ids[d.MessageId] {
				t.Fatalf("message %s was not committed for %s", d.MessageId, queue)
			}
			if !seen[d.MessageId] {
				seen[d.MessageId] = true
				missing--
			}
			if err := d.Ack(false); err != nil {
				t.Fatal(err)
			}
		case <-timeout:
			t.Fatalf("queue %s: %d of %d messages have not come", queue, missing, len(ids))
		}
	}
}

// expectDead takes the one message from the dead queue.
func expectDead(t *testing.T, s *stage.Stage, reason, text string) amqp.Delivery {
	t.Helper()
	d := s.Receive(s.Topology.DeadQueue(), 1)[0]
	isDead(t, d, reason, text)
	return d
}

func isDead(t *testing.T, d amqp.Delivery, reason, text string) {
	t.Helper()
	if got := d.Headers[wire.HeaderDeadReason]; got != reason {
		t.Errorf("dead reason %v, want %s", got, reason)
	}
	if got, _ := d.Headers[wire.HeaderDeadText].(string); !strings.Contains(got, text) {
		t.Errorf("dead text %q, want something with %q", got, text)
	}
	if at, _ := d.Headers[wire.HeaderDeadAt].(string); at == "" {
		t.Error("the dead message has no time")
	}
}

// publish puts a message into the staging queue without a sender.
func publish(t *testing.T, s *stage.Stage, p amqp.Publishing) {
	t.Helper()
	if err := s.Channel.PublishWithContext(t.Context(), "", s.Topology.Queue, true, false, p); err != nil {
		t.Fatal(err)
	}
}

// Each malformed message, and each of another ledger, goes to the dead queue unchanged and without a
// judgement, with its fault as reason. The good messages beside it, also in its group, are judged.
func TestAMalformedOrForeignMessageIsDeadLetteredAndOthersGoOn(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	ledger := s.Ledger.Identity()
	good := named(queue, "good")
	if err := recorded(t, s, good).Commit(); err != nil {
		t.Fatal(err)
	}
	publish(t, s, amqp.Publishing{Body: []byte("no headers"), MessageId: "42"})
	other := uuid.New()
	foreign, err := wire.Encode(named(queue, "foreign"), other)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, s, foreign)
	cut := wire.Group(ledger, recordOf(t, s, ledger, named(queue, "")))
	cut.Body = cut.Body[:len(cut.Body)-1]
	publish(t, s, cut)
	// One record has headers larger than a frame. Another has so many small headers that they fit
	// into a record, but not into a frame together with the dead queue's headers.
	huge := wire.EncodeRecord(amqp.Publishing{MessageId: uuid.NewString(), Headers: amqp.Table{"huge": strings.Repeat("x", 200_000)}})
	headers := amqp.Table{wire.HeaderExchange: "", wire.HeaderRoutingKey: queue}
	for i := range 9000 {
		headers[fmt.Sprintf("%04x", i)] = true
	}
	countless := wire.EncodeRecord(amqp.Publishing{MessageId: uuid.NewString(), Headers: headers})
	publish(t, s, wire.Group(ledger, huge, recordOf(t, s, ledger, good), countless))
	ids := goodBatch(s, queue, 10)
	ids[good.ID.String()] = true
	v := s.Verify(verifier.Options{})
	expectAll(t, s, queue, ids)
	wrong := map[string]string{
		"no headers": "message-id", string(cut.Body): "cut short", string(huge): "bytes of properties", string(countless): "headers",
		"foreign": other.String(),
	}
	for _, d := range s.Receive(s.Topology.DeadQueue(), len(wrong)) {
		text, ok := wrong[string(d.Body)]
		reason := wire.DeadMalformed
		if string(d.Body) == "foreign" {
			reason = wire.DeadForeign
		}
		if isDead(t, d, reason, text); !ok || d.Headers[wire.HeaderDeadVerdict] != "unknown" {
			t.Errorf("a dead message of %d bytes, verdict %v", len(d.Body), d.Headers[wire.HeaderDeadVerdict])
		}
		id, group := map[string]string{"message-id": "42", other.String(): foreign.MessageId}[text], d.Headers[wire.HeaderGroup]
		if id != "" && d.MessageId != id || text == "cut short" && group != "1" {
			t.Errorf("the dead message has ID %q and is of group %v", d.MessageId, group)
		}
		delete(wrong, string(d.Body))
	}
	v.Stop()
	if n := s.Depth(s.Topology.Queue) + s.Depth(s.Topology.DeadQueue()); n != 0 || v.Stats().Dropped != 0 {
		t.Errorf("%d messages are left, and %d were dropped", n, v.Stats().Dropped)
	}
}

func TestTargetsOffTheAllowListAreDeadLetteredWhenCommitted(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	good, bad := s.Queue("orders.new", nil), s.Queue("payroll", nil)
	v := s.Verify(verifier.Options{Allow: []verifier.Allow{{Exchange: "", RoutingKey: "orders.*"}}})
	s.RollBack(stage.To(bad, "rolled back"))
	s.Commit(stage.To(good, "a"))
	s.Receive(good, 1)
	s.Eventually("the rolled-back one is dropped, not dead", func() bool { return v.Stats().Dropped == 1 })

	s.Commit(stage.To(bad, "b"))
	expectDead(t, s, "not-allowed", "payroll")

	copies := stage.To(good, "c")
	copies.Publishing.Headers = amqp.Table{"CC": []any{bad}}
	s.Commit(copies)
	expectDead(t, s, "not-allowed", "orders.new")

	s.Commit(stage.To(s.Topology.Queue, "to the staging queue itself"))
	expectDead(t, s, "not-allowed", s.Topology.Queue)

	v.Stop()
	if n := s.Depth(bad); n != 0 {
		t.Errorf("%d messages reached the forbidden queue", n)
	}
	if n := s.Rows(); n != 0 {
		t.Errorf("%d rows left: dead letters have been judged", n)
	}
}

func TestUnroutableArrivesOnceItsQueueExists(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	v := s.Verify(verifier.Options{Patience: 300 * time.Millisecond, Unroutable: time.Hour})
	late := s.Commit(stage.To("late", "x"))
	exchange := bridge.Message{Exchange: "late-exchange", RoutingKey: "k", Publishing: amqp.Publishing{Body: []byte("y")}}
	lateExchange := s.Commit(exchange)
	// Both have been tried, and wait in the waiting queue.
	s.Eventually("both are set aside", func() bool { return v.Stats().SetAside >= 2 })
	expectAll(t, s, queue, goodBatch(s, queue, 100))
	if err := s.Channel.ExchangeDeclare("late-exchange", "direct", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	s.Queue("late", nil)
	s.Queue("late-too", nil)
	if err := s.Channel.QueueBind("late-too", "k", "late-exchange", false, nil); err != nil {
		t.Fatal(err)
	}
	if d := s.Receive("late", 1)[0]; d.MessageId != late[0].String() {
		t.Errorf("got %s", d.MessageId)
	}
	if d := s.Receive("late-too", 1)[0]; d.MessageId != lateExchange[0].String() || len(d.Headers) != 0 {
		t.Errorf("got %s with headers %v", d.MessageId, d.Headers)
	}
	if n := v.Stats().DeadLettered; n != 0 {
		t.Errorf("%d dead", n)
	}
}

// The message that closes the channel is found. Hundreds of good messages beside it do not wait
// for it.
func TestAMissingExchangeHoldsUpNoOtherTarget(t *testing.T) {
	t.Parallel()
	s := stage.New(t, stage.Postgres)
	queue := s.Queue("target", nil)
	ids := goodBatch(s, queue, 300)
	for range 20 {
		s.Commit(bridge.Message{Exchange: "no-such-exchange", RoutingKey: "k"})
	}
	maps.Copy(ids, goodBatch(s, queue, 300))
	closed := make(chan struct{}, 100)
	v := s.Verify(verifier.Options{Unroutable: time.Hour, Logger: slog.New(logSignal{stage.Logger(t).Handler(), "publishing channel closed", closed})})
	expectAll(t, s, queue, ids)
	if n := v.Stats().Sessions; n != 1 {
		t.Fatalf("%d sessions: a refused publish must not end the session", n)
	}
	servertest.Eventually(t, "the 20 wait for their exchange", func() bool {
		if len(closed) == cap(closed) {
			t.Fatalf("the channel was closed %d times for 20 messages", cap(closed))
		}
		return slices.ContainsFunc(v.State().Targets, func(h verifier.UnavailableTarget) bool { return h.Messages == 20 })
	})
	v.Stop()
	if n := s.Rows(); n != 20 {
		t.Errorf("%d rows, want 20", n)
	}
}

// The broker closes the channel because of them. They are found among many good messages.
func TestAMessageThatTheBrokerRefusesIsDeadLettered(t *testing.T) {
	t.Parallel()
	impostor := stage.To("target", "impostor")
	impostor.Publishing.UserId = "another-user"
	for name, test := range map[string]struct {
		bad  bridge.Message
		says string
	}{
		"no right to the target": {bridge.Message{Exchange: "secret", RoutingKey: "k"}, "secret"},
		"a property":             {impostor, "user_id"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin := servertest.Vhost(t)
			s := stage.On(t, stage.Postgres, admin, bridge.Topology{Queue: "staging"})
			queue := s.Queue("target", nil)
			if err := s.Channel.ExchangeDeclare("secret", "fanout", true, false, false, false, nil); err != nil {
				t.Fatal(err)
			}
			ids := goodBatch(s, queue, 100)
			id := s.Commit(test.bad)[0].String()
			maps.Copy(ids, goodBatch(s, queue, 100))
			// The verifier's login may write only to the default exchange.
			s.Broker = dial(t, servertest.User(t, admin, "", "^amq.default$", ".*"))
			v := s.Verify(verifier.Options{KeepUserID: true})
			expectAll(t, s, queue, ids)
			if d := expectDead(t, s, "refused", test.says); d.MessageId != id {
				t.Errorf("dead message %s, want %s", d.MessageId, id)
			}
			if n := v.Stats().Sessions; n != 1 {
				t.Errorf("%d sessions", n)
			}
		})
	}
}

// A message's headers fit into a frame, but not together with the reason: then the dead letter's
// body is a record of the message. The verifier must not need the staging queue's dead-letter
// exchange, which may be missing if the verifier has no right to declare the queue.
func TestAMessageThatDoesNotFitWithItsReasonIsDeadLetteredAsARecord(t *testing.T) {
	t.Parallel()
	admin := servertest.Vhost(t)
	s := stage.On(t, stage.Postgres, admin, bridge.Topology{Queue: "staging"})
	if _, err := s.Channel.QueueDelete(s.Topology.Queue, false, false, false); err != nil {
		t.Fatal(err)
	}
	s.Queue(s.Topology.Queue, amqp.Table{"x-queue-type": "quorum"})
	queue := s.Queue("target", nil)
	s.Broker = dial(t, servertest.User(t, admin, "^$", ".*", ".*"))
	publish(t, s, amqp.Publishing{MessageId: "huge", Headers: amqp.Table{"h": strings.Repeat("x", 130_950)}, Type: "t", Body: []byte("body")})
	// This one looks like a record and is none.
	publish(t, s, amqp.Publishing{MessageId: "forged", Headers: amqp.Table{wire.HeaderDeadRecord: "1"}, Body: []byte("body")})
	ids := goodBatch(s, queue, 100)
	v := s.Verify(verifier.Options{})
	expectAll(t, s, queue, ids)
	for _, d := range s.Receive(s.Topology.DeadQueue(), 2) {
		opened, err := wire.OpenDead(d)
		if err != nil || string(opened.Body) != "body" || opened.MessageId != d.MessageId || d.Headers[wire.HeaderDeadReason] != "malformed" {
			t.Errorf("dead message %+v: %v", d, err)
		}
		if text, _ := opened.Headers["h"].(string); d.MessageId == "huge" && (len(text) != 130_950 || opened.Type != "t") {
			t.Errorf("the huge one opened: type %q and a header of %d bytes", opened.Type, len(text))
		}
		if d.MessageId == "forged" && opened.Headers[wire.HeaderDeadRecord] != "1" {
			t.Errorf("the forged one opened: headers %v", opened.Headers)
		}
	}
	if n := v.Stats(); n.Sessions != 1 || n.DeadLettered != 2 {
		t.Errorf("stats %+v", n)
	}
}

// fanOut declares a fanout exchange with a healthy queue and one that is full and refuses.
func fanOut(t *testing.T, s *stage.Stage) (exchange, healthy, full string) {
	t.Helper()
	exchange = "events"
	healthy, full = s.Queue("healthy", nil), s.Queue("full", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	if err := s.Channel.ExchangeDeclare(exchange, "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for _, queue := range []string{healthy, full} {
		if err := s.Channel.QueueBind(queue, "", exchange, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Channel.PublishWithContext(t.Context(), "", full, false, false, amqp.Publishing{}); err != nil {
		t.Fatal(err)
	}
	return exchange, healthy, full
}

// broadcast commits n messages for an exchange.
func broadcast(s *stage.Stage, exchange string, n int) map[string]bool {
	ids := map[string]bool{}
	for i := range n {
		add(ids, s.Commit(bridge.Message{Exchange: exchange, Publishing: amqp.Publishing{Body: []byte(fmt.Sprint(i))}})...)
	}
	return ids
}

// A full queue behind an exchange nacks each message that the exchange's other queues accept. The
// other queues get each message at once, in no more copies than Options.Copies. Then the messages
// are dead-lettered.
func TestAFullQueueBehindAnExchangeKeepsNothingFromTheOthers(t *testing.T) {
	t.Parallel()
	const messages, copies = 40, 3
	s := stage.New(t, stage.Postgres)
	exchange, healthy, full := fanOut(t, s)
	v := s.Verify(verifier.Options{Copies: copies, Patience: 200 * time.Millisecond, HandBack: 2 * time.Second})
	ids := broadcast(s, exchange, messages)
	came := map[string]int{}
	for _, d := range s.Receive(healthy, messages) {
		came[d.MessageId]++
	}
	if len(came) < messages/2 { // copies come too, from a second after the first nack
		t.Errorf("the first %d copies are of %d messages", messages, len(came))
	}
	for _, d := range s.Receive(s.Topology.DeadQueue(), messages) {
		if isDead(t, d, "full", exchange); !ids[d.MessageId] || d.Headers[wire.HeaderDeadVerdict] != "committed" {
			t.Errorf("message %s is dead, verdict %v", d.MessageId, d.Headers[wire.HeaderDeadVerdict])
		}
		delete(ids, d.MessageId)
	}
	rest, err := s.Take(healthy)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range rest {
		came[d.MessageId]++
	}
	for id, n := range came {
		if n > copies {
			t.Errorf("%d copies of message %s", n, id)
		}
	}
	if len(came) != messages || len(ids) != 0 {
		t.Errorf("%d messages came to the healthy queue, %d are in no dead queue", len(came), len(ids))
	}
	if n := s.Depth(full); n != 1 {
		t.Errorf("%d messages are in the full queue", n)
	}
	s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	if n := v.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// When the queue has room again, it gets the messages that wait for it.
func TestAQueueBehindAnExchangeIsTriedUntilItHasRoom(t *testing.T) {
	t.Parallel()
	const messages = 20
	s := stage.New(t, stage.Postgres)
	exchange, healthy, full := fanOut(t, s)
	v := s.Verify(verifier.Options{Patience: time.Second})
	ids := broadcast(s, exchange, messages)
	expectAll(t, s, healthy, ids)
	s.Eventually("the target is held", func() bool {
		held := v.State().Targets
		return len(held) == 1 && held[0].Reason == verifier.Full && !held[0].DeadLetterAt.IsZero()
	})
	s.Receive(full, 1) // the one that filled it
	expectAll(t, s, full, ids)
	s.Eventually("the ledger is empty", func() bool { return s.Rows() == 0 })
	if n := v.Stats(); n.Sessions != 1 || n.DeadLettered != 0 {
		t.Errorf("stats %+v", n)
	}
}
