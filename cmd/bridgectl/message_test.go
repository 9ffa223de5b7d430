package main

import (
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/bridge/inspect"
)

// The advice about a message must fit the place where the message is.
func TestConclude(t *testing.T) {
	dead := func(verdict string) *deadFacts {
		return &deadFacts{Found: []*deadMessage{{Reason: "swept", Text: "old", Verdict: verdict}}}
	}
	now := time.Now()
	old, none := &rowFacts{State: rowCommitted, RecordedAt: new(now.Add(-time.Hour))}, map[string]int{}
	foreign := &deadFacts{Found: []*deadMessage{{Reason: "foreign", Verdict: "unknown", StagedAt: &now}}}
	row := func(state string) *rowFacts { return &rowFacts{State: state} }
	carried := func(recorded time.Duration, published bool) *rowFacts {
		return &rowFacts{State: rowCommitted, RecordedAt: new(now.Add(recorded)), Carried: &carriedMessage{StageAt: now.Add(time.Minute), Published: published}}
	}
	for name, c := range map[string]struct {
		facts messageFacts
		says  []string
		never []string
	}{
		"committed, dead, row gone": {messageFacts{Ledger: row(rowAbsent), Dead: dead("committed")},
			[]string{"its receiver should have it", "deleted once the message was safe in the dead queue", "until dead replay sends it to its target"}, []string{"could judge"}},
		"unknown, dead, row there": {messageFacts{Ledger: row(rowCommitted), Dead: dead("unknown")},
			[]string{"No verifier could judge it", "Its row is in the ledger: its transaction committed", "until dead replay sends it to its target"}, []string{"A verifier forwards the message"}},
		"of another ledger, dead": {messageFacts{Ledger: row(rowAbsent), Dead: &deadFacts{Found: []*deadMessage{{Reason: "foreign", Ledger: "theirs", Verdict: "unknown"}}}},
			[]string{"it belongs to ledger theirs", "With that ledger's database in BRIDGE_DATABASE_URL, dead replay"}, []string{"rolled back"}},
		"unknown, dead, row gone": {messageFacts{Ledger: row(rowAbsent), Dead: dead("unknown")},
			[]string{"rolled back, or it was forwarded before, or its row was removed as an orphan"}, []string{"once the message was safe", "discard it."}},
		"foreign to a verifier, and not to the ledger at hand": {messageFacts{Ledger: row(rowAbsent), Dead: foreign},
			[]string{"rolled back, unless it was forwarded before (ask the inbox): discard it.", "dead replay --force"}, []string{"orphan"}},
		"a member of a dead group": {messageFacts{Ledger: row(rowAbsent), Dead: &deadFacts{Found: []*deadMessage{{Reason: "broker", Verdict: "unknown", Members: 2}}}},
			[]string{"rolled back, unless it was forwarded before (ask the inbox)", "Other members of its group may be committed"}, []string{"discard it"}},
		"likewise, and a sweep ran since": {messageFacts{Ledger: &rowFacts{State: rowAbsent, sweptBefore: now.Add(-20 * time.Minute)}, Dead: foreign},
			[]string{"or its row was removed as an orphan: ask the inbox"}, []string{"discard it."}},
		"committed, and perhaps with a verifier": {messageFacts{Ledger: old, Dead: &deadFacts{}, Queues: none, Held: new(int64(8))},
			[]string{"A verifier may hold the message because the target accepts nothing", "'target is unavailable'"}, []string{"lost"}},
		"committed, and the number that verifiers hold is unknown": {messageFacts{Ledger: old, Dead: &deadFacts{}, Queues: none},
			[]string{"A verifier may hold the message", "If no verifier holds it, it may be lost: the management API"}, []string{"Ask the receiver's inbox"}},
		"committed, and others are ready": {messageFacts{Ledger: old, Dead: &deadFacts{}, Queues: none, Held: new(int64), ready: 1},
			[]string{"A verifier may hold the message"}, []string{"lost"}},
		"committed, and not all dead ones were looked at": {messageFacts{Ledger: old, Dead: &deadFacts{LookedAt: 1, Depth: 2}, Queues: none, Held: new(int64)},
			[]string{"A verifier may hold the message"}, []string{"lost"}},
		"committed, nowhere, and young": {messageFacts{Ledger: &rowFacts{State: rowCommitted, RecordedAt: new(now.Add(-time.Minute))}, Dead: &deadFacts{}, Queues: none, Held: new(int64)},
			[]string{"A verifier forwards the message"}, []string{"lost"}},
		"committed, and nowhere": {messageFacts{Ledger: old, Dead: &deadFacts{}, Queues: none, Held: new(int64)},
			[]string{"or it is lost", "ask with --queue for each", "Ask the receiver's inbox", "send it again from your own data", "Only then sweep"}, []string{"A verifier forwards the message"}},
		"absent, others with a verifier": {messageFacts{Ledger: row(rowAbsent), Held: new(int64(3))},
			[]string{"in the queues of the verifiers (3 messages)"}, nil},
		"a server failed": {messageFacts{Failures: []string{"it is down"}}, []string{"Ask again when the servers that failed answer."}, nil},
		"handled, row gone": {messageFacts{Ledger: row(rowAbsent), Inbox: []inboxClaim{{Consumer: "c", State: stateDone}}},
			[]string{"Consumer c has handled it", "it was forwarded, and the row deleted", "Nothing."}, []string{"rolled back"}},
		"handled, row there": {messageFacts{Ledger: row(rowCommitted), Inbox: []inboxClaim{{Consumer: "c", State: stateDone}}},
			[]string{"the message was forwarded, and its row not deleted yet", "sweeps"}, []string{"A verifier forwards"}},
		"committed": {messageFacts{Ledger: row(rowCommitted)},
			[]string{"Its row is in the ledger: its transaction committed", "A verifier forwards the message"}, nil},
		"committed, carried, and nowhere": {messageFacts{Ledger: carried(-time.Hour, true), Dead: &deadFacts{}, Queues: none, Held: new(int64)},
			[]string{"holds the message", "cannot get lost with a queue", "and they hold none", "A verifier stages it from its row", "do not send it again"}, []string{"it is lost", "was published", "from your own data", "sweep"}},
		"likewise, and the messages that verifiers hold are unknown": {messageFacts{Ledger: carried(-time.Hour, true), Dead: &deadFacts{}, Queues: none},
			[]string{"holds the message", "do not send it again"}, []string{"it is lost", "they hold none", "from your own data", "may be lost"}},
		"committed, carried, and young": {messageFacts{Ledger: carried(-time.Second, true), Dead: &deadFacts{}, Queues: none, Held: new(int64)},
			[]string{"holds the message", "A verifier forwards the copy in the queues", "after the stage time"}, []string{"lost:", "was published", "from your own data"}},
		"committed, carried, and never published": {messageFacts{Ledger: carried(0, false)},
			[]string{"holds the message", "No copy of it was published"}, []string{"A verifier forwards"}},
		"handled, and its row carries it": {messageFacts{Ledger: carried(0, true), Inbox: []inboxClaim{{Consumer: "c", State: stateDone}}},
			[]string{"the message was forwarded, and its row not deleted yet", "a duplicate, which the inbox absorbs"}, []string{"sweeps"}},
		"rolled back, dropped": {messageFacts{Ledger: row(rowAbsent), Dropped: &droppedFacts{At: []time.Time{time.Unix(0, 0)}}},
			[]string{"its transaction rolled back, or the message had been forwarded before. A verifier dropped the copy at 1970-01-01 00:00:00"}, nil},
		"in doubt": {messageFacts{Inbox: []inboxClaim{{Consumer: "stock", State: "doubtful", Error: "shelf fell"}}},
			[]string{"Consumer stock has claimed it and not finished: doubtful: shelf fell."}, []string{"has handled"}},
		"open": {messageFacts{Ledger: row(rowOpen)}, []string{"still open", "cannot be seen with this login"}, nil},
		"open, seen": {messageFacts{Ledger: &rowFacts{State: rowOpen, Holders: []inspect.Holder{{Session: "1"}}}},
			[]string{"still open"}, []string{"cannot be seen"}},
		"absent, others on the way": {messageFacts{Ledger: row(rowAbsent), ready: 2},
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
