package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/verifier"
)

// deadLettered returns a message as a verifier puts it into the dead queue.
func deadLettered(t *testing.T, m bridge.Message, ledger uuid.UUID, reason string) amqp.Publishing {
	t.Helper()
	m.ID = uuid.New()
	dead, err := wire.Encode(m, ledger)
	if err != nil {
		t.Fatal(err)
	}
	dead.Headers[wire.HeaderDeadVerdict], dead.Headers[wire.HeaderDeadReason] = "committed", reason
	return dead
}

func delivered(p amqp.Publishing) amqp.Delivery {
	return amqp.Delivery{Headers: p.Headers, MessageId: p.MessageId, Expiration: p.Expiration, Body: p.Body}
}

// A message that is sent elsewhere loses CC and BCC, whose keys are meant for another exchange.
func TestRedirectLeavesCopiesOut(t *testing.T) {
	dead := delivered(deadLettered(t, bridge.Message{Exchange: "x", RoutingKey: "k", Publishing: amqp.Publishing{
		Expiration: "5000", Headers: amqp.Table{"CC": []any{"a"}, "BCC": []any{"b"}, "mine": "1"},
	}}, uuid.New(), wire.DeadUnroutable))
	for _, c := range []struct {
		to      *bridge.Target
		want    bridge.Target
		headers int
	}{
		{nil, bridge.Target{Exchange: "x", RoutingKey: "k"}, 3},
		{&bridge.Target{RoutingKey: "q"}, bridge.Target{RoutingKey: "q"}, 1},
	} {
		plan := (&planner{to: c.to}).decide(readDead(dead, "twoqueue"), knowledge{})
		if len(plan.out) != 1 || plan.out[0].Target != c.want || len(plan.out[0].Headers) != c.headers || plan.out[0].Expiration != "5000" {
			t.Errorf("to %v: %+v", c.want, plan)
		}
	}
}

// Only a verifier's verdict counts. A sender may have written a verdict into a message that the
// broker then moved.
func TestOnlyAVerifiersVerdictIsBelieved(t *testing.T) {
	d := delivered(deadLettered(t, bridge.Message{RoutingKey: "q"}, uuid.New(), ""))
	if m := readDead(d, "twoqueue"); m.Verdict != "committed" || len((&planner{}).decide(m, knowledge{}).out) != 1 {
		t.Errorf("a verifier's: %+v", m)
	}
	d.Headers["x-death"] = []any{amqp.Table{"queue": "staging", "reason": "delivery_limit"}}
	m := readDead(d, "twoqueue")
	if m.Verdict != "unknown" || m.Reason != reasonBroker || (&planner{}).decide(m, knowledge{}).refusal == "" {
		t.Errorf("the broker's: %+v", m)
	}
}

// Every login that may write to the dead queue can write a verdict. An own table keeps its rows, so
// its answer prevails.
func TestAnOwnTableIsBelievedAndNotAForgedVerdict(t *testing.T) {
	ledger := uuid.New()
	m := readDead(delivered(deadLettered(t, bridge.Message{RoutingKey: "q"}, ledger, "")), "twoqueue")
	for there, want := range map[bool]string{true: "its row was in the ledger", false: "its header says committed, and its table has no row with its ID"} {
		plan := (&planner{}).decide(m, knowledge{identity: ledger, keeps: true, rows: map[uuid.UUID]bool{m.members[0].ID: there}})
		if there != (len(plan.out) == 1) || !strings.Contains(plan.note+plan.refusal, want) {
			t.Errorf("with a row %t: %+v", there, plan)
		}
	}
}

// dead replay gives the same advice about a message without a row as the command message.
func TestAMessageWithoutARowIsDiscardedUnlessItsRowMayHaveBeenSwept(t *testing.T) {
	ledger := uuid.New()
	d := delivered(deadLettered(t, bridge.Message{RoutingKey: "q"}, ledger, wire.DeadForeign))
	d.Headers[wire.HeaderDeadVerdict] = "unknown"
	d.Headers[wire.HeaderStagedAt] = time.Now().UnixMilli()
	for swept, want := range map[time.Time]string{
		{}:                               "unless it was forwarded before (ask the inbox): discard it; --force sends it",
		time.Now().Add(-time.Hour):       "unless it was forwarded before (ask the inbox): discard it",
		time.Now().Add(-5 * time.Minute): "or its row was removed as an orphan",
	} {
		plan := (&planner{}).decide(readDead(d, "twoqueue"), knowledge{identity: ledger, swept: swept})
		if !strings.Contains(plan.refusal, want) || strings.Contains(plan.refusal, "orphan") == strings.Contains(plan.refusal, "discard") {
			t.Errorf("swept before %v: %s", swept, plan.refusal)
		}
	}
}

// The broker may have moved a group whose members belong to several transactions.
func TestAGroupIsNotDiscardedForAMemberWithoutARow(t *testing.T) {
	ledger, rolledBack := uuid.New(), wire.Staged{}
	rolledBack.ID, rolledBack.Ledger = uuid.New(), ledger
	committed := rolledBack
	committed.ID = uuid.New()
	m := &deadMessage{Reason: reasonBroker, Verdict: "unknown", Members: 2, members: []wire.Staged{committed, rolledBack}}
	plan := (&planner{}).decide(m, knowledge{identity: ledger, rows: map[uuid.UUID]bool{committed.ID: true}})
	if len(plan.out) != 0 || !strings.Contains(plan.refusal, "of its member "+rolledBack.ID.String()) ||
		!strings.Contains(plan.refusal, "Other members of its group may be committed") || strings.Contains(plan.refusal, "discard it") {
		t.Errorf("%+v", plan)
	}
}

func TestReplayKeepsToTheAllowList(t *testing.T) {
	dead := func(queue, reason string, copies ...any) *deadMessage {
		t.Helper()
		m := bridge.Message{RoutingKey: queue}
		if copies != nil {
			m.Publishing.Headers = amqp.Table{"CC": copies}
		}
		return readDead(delivered(deadLettered(t, m, uuid.New(), reason)), "twoqueue")
	}
	topology := bridge.Topology{Queue: "staging"}
	unset := &planner{permits: (&verifier.Options{Topology: topology}).Permits()}
	set := &planner{permits: (&verifier.Options{Topology: topology, Allow: []verifier.Allow{{RoutingKey: "good*"}}}).Permits(), listed: true}
	elsewhere := *set
	elsewhere.to = &bridge.Target{RoutingKey: "anywhere"}
	forced := *set
	forced.force = true
	for _, c := range []struct {
		name    string
		planner *planner
		m       *deadMessage
		sent    bool
	}{
		{"on the list", set, dead("good", wire.DeadUnroutable), true},
		{"not on the list", set, dead("bad", wire.DeadUnroutable), false},
		{"a copy that is not on the list", set, dead("good", wire.DeadUnroutable, "bad"), false},
		{"copies that are on the list", set, dead("good", wire.DeadUnroutable, "good too"), true},
		{"on the list since", set, dead("good", wire.DeadNotAllowed), true},
		{"not on the list, but forced", &forced, dead("bad", wire.DeadNotAllowed), true},
		{"not on the list, and sent elsewhere", &elsewhere, dead("bad", wire.DeadNotAllowed), true},
		{"no list here", unset, dead("bad", wire.DeadUnroutable), true},
		{"no list here, but a verifier had one", unset, dead("bad", wire.DeadNotAllowed), false},
		{"the verifiers' own queue", unset, dead("staging", wire.DeadUnroutable), false},
	} {
		plan := c.planner.decide(c.m, knowledge{})
		if sent := len(plan.out) == 1; sent != c.sent || sent == strings.Contains(plan.refusal, "or set BRIDGE_ALLOW to") {
			t.Errorf("%s: %+v", c.name, plan)
		}
	}
}

// JSON can represent every header of a dead message.
func TestHeadersAsJSON(t *testing.T) {
	got := jsonTable(amqp.Table{"b": []byte{0xff}, "t": amqp.Table{"d": amqp.Decimal{Scale: 2, Value: 314}}, "l": []any{[]byte("x"), int64(1)}})
	if got["b"] != "base64:/w==" || got["t"].(map[string]any)["d"] != "314e-2" || !slices.Equal(got["l"].([]any), []any{"x", int64(1)}) {
		t.Errorf("%v", got)
	}
}

// A dead message without room for the verifier's headers is a record (wire.DeadRecord). It is read
// like any other.
func TestADeadRecordIsReadLikeAnyLetter(t *testing.T) {
	staged := deadLettered(t, bridge.Message{RoutingKey: "q", Publishing: amqp.Publishing{Body: []byte("body")}}, uuid.New(), wire.DeadUnroutable)
	d := delivered(wire.DeadRecord(staged))
	d.DeliveryTag = 7
	m := readDead(d, "twoqueue")
	plan := (&planner{}).decide(m, knowledge{})
	if m.wrong != nil || m.Verdict != "committed" || m.Reason != "unroutable" || m.RoutingKey != "q" || m.Size != 4 || m.delivery.DeliveryTag != 7 {
		t.Errorf("it is read as %+v", m)
	}
	if len(plan.out) != 1 || string(plan.out[0].Body) != "body" || plan.out[0].MessageId != staged.MessageId || len(plan.out[0].Headers) != 0 {
		t.Errorf("it is replayed as %+v", plan)
	}
	d.Headers["x-death"] = []any{amqp.Table{"queue": "staging", "reason": "rejected"}}
	if m := readDead(d, "twoqueue"); m.Verdict != "unknown" {
		t.Errorf("a message that the broker has moved: %+v", m)
	}
	d.Body = d.Body[:10]
	if m := readDead(d, "twoqueue"); m.wrong == nil || len((&planner{}).decide(m, knowledge{}).out) != 0 {
		t.Errorf("a broken one: %+v", m)
	}
}
