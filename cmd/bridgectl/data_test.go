package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// What an operator is told about one message must fit to where it is.
func TestConclude(t *testing.T) {
	dead := func(verdict string) *deadFacts {
		return &deadFacts{Found: []*deadMessage{{Reason: "swept", Text: "old", Verdict: verdict}}}
	}
	row := func(state string) *rowFacts { return &rowFacts{State: state} }
	for name, c := range map[string]struct {
		facts messageFacts
		says  []string
		never []string
	}{
		"committed, dead, row gone": {messageFacts{Ledger: row(rowAbsent), Dead: dead("committed")},
			[]string{"its receiver should have it", "deleted once the message was safe in the dead queue", "until dead replay sends it to its target"}, []string{"could judge"}},
		"unknown, dead, row there": {messageFacts{Ledger: row(rowCommitted), Dead: dead("unknown")},
			[]string{"No verifier could judge it", "Its row is in the ledger: its transaction committed", "until dead replay sends it to its target"}, []string{"A verifier forwards it"}},
		"of another ledger, dead": {messageFacts{Ledger: row(rowAbsent), Dead: &deadFacts{Found: []*deadMessage{{Reason: "foreign", Ledger: "theirs", Verdict: "unknown"}}}},
			[]string{"it belongs to ledger theirs", "With that ledger's database, dead replay"}, []string{"rolled back"}},
		"unknown, dead, row gone": {messageFacts{Ledger: row(rowAbsent), Dead: dead("unknown")},
			[]string{"rolled back, or it was forwarded before"}, []string{"once the message was safe"}},
		"handled, row gone": {messageFacts{Ledger: row(rowAbsent), Inbox: []inboxClaim{{Consumer: "c", State: stateDone}}},
			[]string{"Consumer c has handled it", "it was forwarded, and the row deleted", "Nothing."}, []string{"rolled back"}},
		"handled, row there": {messageFacts{Ledger: row(rowCommitted), Inbox: []inboxClaim{{Consumer: "c", State: stateDone}}},
			[]string{"has been forwarded, and the row has not been deleted", "sweeps"}, []string{"A verifier forwards"}},
		"committed": {messageFacts{Ledger: row(rowCommitted)},
			[]string{"Its row is in the ledger: its transaction committed", "A verifier forwards it"}, nil},
		"committed, parked": {messageFacts{Ledger: row(rowCommitted), Parked: &parkedFacts{Found: &parkedMessage{}}},
			[]string{"It is parked in the database", "A verifier puts it into the staging queue"}, []string{"A verifier forwards it"}},
		"rolled back, staged": {messageFacts{Ledger: row(rowAbsent), Staging: &stagingFacts{Found: []string{"staging"}}},
			[]string{"It is in queue staging.", "its transaction rolled back", "A verifier drops it."}, nil},
		"rolled back, dropped": {messageFacts{Ledger: row(rowAbsent), Dropped: &droppedFacts{At: []time.Time{time.Unix(0, 0)}}},
			[]string{"its transaction rolled back, and a verifier dropped it at 1970-01-01 00:00:00"}, nil},
		"in doubt": {messageFacts{Inbox: []inboxClaim{{Consumer: "stock", State: "doubtful", Error: "shelf fell"}}},
			[]string{"Consumer stock has claimed it and is not done: doubtful: shelf fell."}, []string{"has handled"}},
		"open": {messageFacts{Ledger: row(rowOpen)}, []string{"still open", "cannot be seen with this login"}, nil},
		"open, seen": {messageFacts{Ledger: &rowFacts{State: rowOpen, Holders: []inspect.Holder{{Session: "1"}}}},
			[]string{"still open"}, []string{"cannot be seen"}},
		"absent, others on the way": {messageFacts{Ledger: row(rowAbsent), onWay: 2},
			[]string{"there never was such a message", "in the queues of the verifiers (2 messages)"}, nil},
		"nothing asked but the queues": {messageFacts{Dead: &deadFacts{}}, []string{"Nothing is known about it."}, nil},
	} {
		c.facts.conclude()
		text := strings.Join(append(c.facts.Meaning, c.facts.Next), " ")
		for _, words := range c.says {
			if !strings.Contains(text, words) {
				t.Errorf("%s: %q is not in %q", name, words, text)
			}
		}
		for _, words := range c.never {
			if strings.Contains(text, words) {
				t.Errorf("%s: %q is in %q", name, words, text)
			}
		}
	}
}

// The receiver's form of a message that is sent elsewhere: no copies go by keys that
// mean something at another exchange.
func TestRedirectLeavesCopiesOut(t *testing.T) {
	staged, err := wire.Encode(bridge.Message{ID: uuid.New(), Exchange: "x", RoutingKey: "k", Publishing: amqp.Publishing{
		Expiration: "5000", Headers: amqp.Table{"CC": []any{"a"}, "BCC": []any{"b"}, "mine": "1"},
	}}, uuid.New())
	if err != nil {
		t.Fatal(err)
	}
	staged.Headers[wire.HeaderDeadVerdict] = "committed"
	read := func() *deadMessage {
		return readDead(amqp.Delivery{Headers: staged.Headers, MessageId: staged.MessageId, Expiration: staged.Expiration})
	}
	plan := (&planner{}).decide(read(), knowledge{})
	if len(plan.out) != 1 || plan.out[0].Exchange != "x" || len(plan.out[0].Headers) != 3 || plan.out[0].Expiration != "5000" {
		t.Errorf("to its own target: %+v", plan)
	}
	plan = (&planner{to: &bridge.Target{RoutingKey: "q"}}).decide(read(), knowledge{})
	if len(plan.out) != 1 || plan.out[0].Target != (bridge.Target{RoutingKey: "q"}) || len(plan.out[0].Headers) != 1 {
		t.Errorf("to another: %+v", plan)
	}
}

// Only a verifier's word counts, not what a sender has written into a message that the
// broker has moved.
func TestAVerdictIsBelievedOfAVerifierOnly(t *testing.T) {
	staged, err := wire.Encode(bridge.Message{ID: uuid.New(), RoutingKey: "q"}, uuid.New())
	if err != nil {
		t.Fatal(err)
	}
	staged.Headers[wire.HeaderDeadVerdict] = "committed"
	d := amqp.Delivery{Headers: staged.Headers, MessageId: staged.MessageId}
	if m := readDead(d); m.Verdict != "committed" || len((&planner{}).decide(m, knowledge{}).out) != 1 {
		t.Errorf("a verifier's: %+v", m)
	}
	d.Headers["x-death"] = []any{amqp.Table{"queue": "staging", "reason": "delivery_limit"}}
	m := readDead(d)
	if m.Verdict != "unknown" || m.Reason != reasonBroker || (&planner{}).decide(m, knowledge{}).refusal == "" {
		t.Errorf("the broker's: %+v", m)
	}
}

// Whatever is in a dead message, JSON can say it.
func TestHeadersAsJSON(t *testing.T) {
	got := jsonTable(amqp.Table{"b": []byte{0xff}, "t": amqp.Table{"d": amqp.Decimal{Scale: 2, Value: 314}}, "l": []any{[]byte("x"), int64(1)}})
	if got["b"] != "base64:/w==" || got["t"].(map[string]any)["d"] != "314e-2" || !slices.Equal(got["l"].([]any), []any{"x", int64(1)}) {
		t.Errorf("%v", got)
	}
}

// A record is read as if the letter had fitted into the dead queue.
func TestADeadRecordIsReadLikeAnyLetter(t *testing.T) {
	staged, err := wire.Encode(bridge.Message{ID: uuid.New(), RoutingKey: "q", Publishing: amqp.Publishing{Body: []byte("body")}}, uuid.New())
	if err != nil {
		t.Fatal(err)
	}
	staged.Headers[wire.HeaderDeadVerdict], staged.Headers[wire.HeaderDeadReason] = "committed", "unroutable"
	record := wire.DeadRecord(staged)
	d := amqp.Delivery{Headers: record.Headers, MessageId: record.MessageId, Body: record.Body, DeliveryTag: 7}
	m := readDead(d)
	plan := (&planner{}).decide(m, knowledge{})
	if m.wrong != nil || m.Verdict != "committed" || m.Reason != "unroutable" || m.RoutingKey != "q" || m.Size != 4 || m.delivery.DeliveryTag != 7 {
		t.Errorf("it is read as %+v", m)
	}
	if len(plan.out) != 1 || string(plan.out[0].Body) != "body" || plan.out[0].MessageId != staged.MessageId || len(plan.out[0].Headers) != 0 {
		t.Errorf("it is replayed as %+v", plan)
	}
	d.Headers["x-death"] = []any{amqp.Table{"queue": "staging", "reason": "rejected"}}
	if m := readDead(d); m.Verdict != "unknown" {
		t.Errorf("what the broker has moved: %+v", m)
	}
	d.Body = d.Body[:10]
	if m := readDead(d); m.wrong == nil || len((&planner{}).decide(m, knowledge{}).out) != 0 {
		t.Errorf("a broken one: %+v", m)
	}
}
