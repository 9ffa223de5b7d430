package faults

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twoqueue/twoqueue/compose/servers"
	"github.com/twoqueue/twoqueue/compose/servers/children"
	"github.com/twoqueue/twoqueue/tests/faults/parts"
	"github.com/twoqueue/twoqueue/tests/faults/world"
	"github.com/twoqueue/twoqueue/tests/servers/servertest"
)

// A mutant breaks one rule. One build of the product has all mutants, and world.Config.Mutant
// chooses one. The judge of a scenario must catch it, or a test that tests/README.md names for the
// rule.
type mutant struct {
	name  string
	edits []edit

	scenario string     // the scenario that depends on the rule
	caught   world.Kind // the violation that the judge must find

	pkg, test string // the test that must fail, if there is no scenario; pkg is relative to tests
	says      string // a regular expression that the test's output must match
}

// An edit replaces a text that occurs exactly once in a file of the product, after the edits before
// it. A refactoring that moves the text fails the test; then find the rule's new place.
type edit struct{ file, old, new string }

// theSwitch is an additional file in each edited package.
const theSwitch = `

import "os"

var chosen = os.Getenv("` + parts.MutantVariable + `")

func mutant(name string) bool { return name == chosen }
`

var mutants = []mutant{
	{
		name:     "ack before confirm",
		scenario: "a verifier dies while a target is missing",
		caught:   world.Lost,
		edits: []edit{{"verifier/pipeline.go", `		p.publish(m.toTarget())
`, `		if mutant("ack before confirm") {
			_ = m.unacked.AckAtOnce()
		}
		p.publish(m.toTarget())
`}, {"verifier/internal/consume/unacked.go", `// IsSingle reports`, `func (u *Unacked) AckAtOnce() error { return u.From.ch.Ack(u.tag, false) }

func (u *Unacked) HandBack() { u.From.acks.handBack(u.tag) }

// IsSingle reports`}},
	},
	{
		name:     "delete before confirm",
		scenario: "a verifier dies while a target is missing",
		caught:   world.Lost,
		edits: []edit{
			{"verifier/forgetter.go", `// An undeletedRow is`, `func (r *resources) forgetAtOnce(m *message) {
	_, _ = r.ledger.Forget(context.Background(), []uuid.UUID{m.staged.ID})
}

// An undeletedRow is`},
			{"verifier/pipeline.go", `		p.publish(m.toTarget())
`, `		if mutant("delete before confirm") || mutant("delete a carried row before the confirm") {
			p.forgetAtOnce(m)
		}
		p.publish(m.toTarget())
`},
		},
	},
	{
		name:     "drop on time-out",
		scenario: "a transaction is open for longer than the lock time-out",
		caught:   world.Lost,
		edits: []edit{
			{"verifier/judge.go", `leaves := outcome != driver.StillOpen || tooMany || j.limits.overstays(m, time.Now())`,
				`leaves := outcome != driver.StillOpen || tooMany || j.limits.overstays(m, time.Now()) || mutant("drop on time-out")`},
			{"verifier/judge.go", `case outcome == driver.RolledBack:`,
				`case outcome == driver.RolledBack || mutant("drop on time-out") && outcome != driver.Committed:`},
		},
	},
	{
		name:     "forward on time-out",
		scenario: "a transaction is open for longer than the lock time-out",
		caught:   world.Invented,
		edits: []edit{
			{"verifier/judge.go", `leaves := outcome != driver.StillOpen || tooMany || j.limits.overstays(m, time.Now())`,
				`leaves := outcome != driver.StillOpen || tooMany || j.limits.overstays(m, time.Now()) || mutant("forward on time-out")`},
			{"verifier/judge.go", `case outcome == driver.Committed:`,
				`case outcome == driver.Committed || mutant("forward on time-out") && outcome != driver.RolledBack:`},
		},
	},
	{
		name:     "publish before record",
		scenario: "the sender's way to the database is slow",
		caught:   world.Lost,
		edits: []edit{
			{"sender/staged.go", `		return ids, s.ledger.Record(ctx, tx, entries)
`, `		if mutant("publish before record") {
			return ids, nil // later
		}
		return ids, s.ledger.Record(ctx, tx, entries)
`},
			{"sender/sender.go", `	return staged.IDs(), nil
`, `	if mutant("publish before record") {
		if err := s.ledger.Record(ctx, tx, driver.Plain(staged.ids...)); err != nil {
			return nil, fmt.Errorf("send: %w", err)
		}
	}
	return staged.IDs(), nil
`},
		},
	},
	{
		name:     "commit without a confirm",
		scenario: "the staging queue is missing",
		caught:   world.Lost,
		edits: []edit{{"sender/staged.go", `	if err != nil {
		return s.sender.mustRollBack(ctx, err)
`, `	if err != nil && !mutant("commit without a confirm") {
		return s.sender.mustRollBack(ctx, err)
`}},
	},
	{
		name: "commit without the early confirm",
		pkg:  "sender",
		test: "TestTheCommitWaitsForTheEarlyConfirm",
		says: "before the confirm",
		edits: []edit{{"sender/txmessages.go", `	for _, staged := range append(t.staged, last) {
`, `	if mutant("commit without the early confirm") {
		t.staged = nil
	}
	for _, staged := range append(t.staged, last) {
`}},
	},
	{
		name: "commit although an early staging has failed",
		pkg:  "sender",
		test: "TestInTxRollsBackIfStageFailsEvenIfFnReturnsNil",
		says: "committed",
		edits: []edit{{"sender/txmessages.go", `	if t.failed != nil {
`, `	if t.failed != nil && !mutant("commit although an early staging has failed") {
`}},
	},
	{
		name:     "ignore returns of forwarded messages",
		scenario: "a verifier dies while a target is missing",
		caught:   world.Lost,
		edits: []edit{{"bridge/confirmchannel.go", `	case p.wasReturned(pub.key):`,
			`	case p.wasReturned(pub.key) && !mutant("ignore returns of forwarded messages"):`}},
	},
	{
		name:     "ignore returns of staged messages",
		scenario: "the staging queue is missing",
		caught:   world.Lost,
		edits: []edit{{"bridge/confirmchannel.go", `	case p.wasReturned(pub.key) && `,
			`	case p.wasReturned(pub.key) && !mutant("ignore returns of staged messages") && `}},
	},
	{
		name:     "believe a non-waiting miss",
		scenario: "a transaction is open for longer than the lock time-out",
		caught:   world.Lost,
		edits: []edit{{"verifier/judge.go", `	j.room.enter(false, misses...)
`, `	if mutant("believe a non-waiting miss") {
		for _, m := range misses {
			j.drop(m)
		}
		misses = nil
	}
	j.room.enter(false, misses...)
`}},
	},
	{
		name:     "stale ack after a reconnect",
		scenario: "a verifier reconnects while a target is missing, and dies",
		caught:   world.Lost,
		edits: []edit{
			{"verifier/internal/consume/consumer.go", `	c := New(config)
`, `	c := New(config)
	if mutant("stale ack after a reconnect") {
		if outliving[config.Queue] == nil {
			outliving[config.Queue] = c.acks
		}
		c.acks = outliving[config.Queue] // the tags stay
	}
`},
			{"verifier/internal/consume/consumer.go", `// receive keeps a delivery`, `var outliving = map[string]*acks{}

// receive keeps a delivery`},
			{"verifier/internal/consume/acks.go", `	a.open = append(a.open, openTag{tag, unacked, time.Now()})`, `	if mutant("stale ack after a reconnect") && tag <= a.last {
		return
	}
	a.open = append(a.open, openTag{tag, unacked, time.Now()})`},
		},
	},
	{
		name:     "ack a group with its first message",
		scenario: "a verifier dies while the target of one of two messages that travel together is missing",
		caught:   world.Lost,
		edits: []edit{{"verifier/pipeline.go", `if m.unacked.MessageDone() {`,
			`if m.unacked.MessageDone() || mutant("ack a group with its first message") {`}},
	},
	{
		name:     "no claim in the inbox",
		scenario: "a message comes again and again",
		caught:   world.TwoEffects,
		edits: []edit{{"idempotency/transaction.go", `	if !fresh {
`, `	if !fresh && !mutant("no claim in the inbox") {
`}, {"idempotency/claim.go", `		return fresh && claimed, claimError
`, `		return (fresh || mutant("no claim in the inbox")) && claimed, claimError
`}},
	},
	{
		name: "forward rows that the standby may lack",
		pkg:  "ledger",
		test: "TestPostgresThatShowsACommitBeforeItsStandbyHasIt",
		says: "while the replica is away: committed true",
		edits: []edit{{"bridge/postgres/replica.go", `	if !on.Waits {
`, `	if !on.Waits || mutant("forward rows that the standby may lack") {
`}},
	},
	{
		name: "commit of an ended transaction",
		pkg:  "idempotency",
		test: "TestADeadlockThatAHandlerIgnoresIsNoSuccess/Handle",
		says: "after 1 runs orders",
		edits: []edit{{"idempotency/internal/engine/transaction.go", `	case errors.Is(err, bridge.ErrTxEnded):
`, `	case errors.Is(err, bridge.ErrTxEnded) && mutant("commit of an ended transaction"):
	case errors.Is(err, bridge.ErrTxEnded):
`}},
	},
	{
		name: "requeue at a stop",
		pkg:  "idempotency",
		test: "TestAReceiverThatStopsLosesNothing",
		says: "after the stop got|delivered a message again",
		edits: []edit{{"idempotency/internal/engine/ack.go", `	e.Count.LeftUnacked.Add(1)
`, `	if mutant("requeue at a stop") {
		return e.HandBack(d, reason)
	}
	e.Count.LeftUnacked.Add(1)
`}},
	},
	// Rule 5.
	{
		name: "no proof",
		pkg:  "verifier",
		test: "TestVerifierRefusesALedgerThatFailsTheProof",
		says: "a session has started",
		edits: []edit{
			{"bridge/proof/proof.go", `err := proveRollback(ctx, p); err != nil {`, `err := proveRollback(ctx, p); err != nil && !mutant("no proof") {`},
			{"bridge/proof/proof.go", `err := proveCommit(ctx, p); err != nil {`, `err := proveCommit(ctx, p); err != nil && !mutant("no proof") {`},
		},
	},
	{
		name: "a proof that believes any outcome of an open transaction",
		pkg:  "verifier",
		test: "TestVerifierRefusesALedgerThatFailsTheProof",
		says: "a session has started",
		edits: []edit{{"bridge/proof/proof.go", `		if outcome != driver.StillOpen {
`, `		if outcome != driver.StillOpen && !mutant("a proof that believes any outcome of an open transaction") {
`}},
	},
	{
		name: "a proof that does not ask whether the settle has waited",
		pkg:  "verifier",
		test: "TestTheProofChecksTheOutcomeOfASettleThatHasWaited",
		says: "the proof says <nil>",
		edits: []edit{{"bridge/proof/proof.go", `	endErr := end()
	err := <-settled
`, `	endErr := end()
	err := <-settled
	if mutant("a proof that does not ask whether the settle has waited") {
		err = nil
	}
`}},
	},
	// Rule 6.
	{
		name: "believe any server that answers",
		pkg:  "verifier",
		test: "TestACopyOfTheDatabase/an_outcome_of_another_server_is_not_believed",
		says: "messages of open transactions are dropped|committed messages are dropped",
		edits: []edit{{"bridge/proof/proof.go", `	if from != p.instance {
`, `	if from != p.instance && !mutant("believe any server that answers") {
`}},
	},
	{
		name: "drop without evidence",
		pkg:  "verifier",
		test: "TestACopyOfTheDatabase/a_verifier_of_a_copy_drops_nothing",
		says: "the copy's verifier has dropped",
		edits: []edit{{"verifier/judge.go", `		if outcome == driver.RolledBack && !evident {
`, `		if outcome == driver.RolledBack && !evident && !mutant("drop without evidence") {
`}},
	},
	{
		name: "a message that a verifier has staged again is evidence",
		pkg:  "verifier",
		test: "TestNeitherAnOldRowNorAMessageStagedAgainIsEvidence",
		says: "dropped without evidence",
		edits: []edit{{"verifier/evidence.go", `	case m.staged.Restaged:
`, `	case m.staged.Restaged && !mutant("a message that a verifier has staged again is evidence"):
`}},
	},
	{
		name: "a row from before the session is evidence",
		pkg:  "verifier",
		test: "TestNeitherAnOldRowNorAMessageStagedAgainIsEvidence",
		says: "dropped without evidence",
		edits: []edit{{"verifier/evidence.go", `		ids, err = e.proven.Recent(`, `		if mutant("a row from before the session is evidence") {
			e.began = time.Now().Add(-time.Hour)
		}
		ids, err = e.proven.Recent(`}},
	},
	{
		name:     "judge messages of another ledger",
		scenario: "strange messages are in the staging queue, and a verifier dies while the dead queue is missing",
		caught:   world.Lost,
		edits: []edit{{"verifier/unpack.go", `	if staged.Ledger != p.ledger.Identity() {
`, `	if staged.Ledger != p.ledger.Identity() && !mutant("judge messages of another ledger") {
`}},
	},
	// Rule 8.
	{
		name:     "ack a strange message before its dead letter is confirmed",
		scenario: "strange messages are in the staging queue, and a verifier dies while the dead queue is missing",
		caught:   world.Lost,
		edits: []edit{{"verifier/pipeline.go", `	p.publish(m.toDead(p.opts.Topology.DeadQueue(), now))
`, `	if mutant("ack a strange message before its dead letter is confirmed") {
		_ = m.unacked.AckAtOnce()
	}
	p.publish(m.toDead(p.opts.Topology.DeadQueue(), now))
`}},
	},
	{
		name: "look for the one that closes the channel among all, again and again",
		pkg:  "verifier",
		test: "TestAMissingExchangeHoldsUpNoOtherTarget",
		says: "messages have not come|the channel was closed",
		edits: []edit{{"verifier/internal/forward/forward.go", `		f.solo.Add(p) // a suspect, or in flight when the connection was lost
`, `		if mutant("look for the one that closes the channel among all, again and again") {
			f.ready.Add(p)
			return
		}
		f.solo.Add(p) // a suspect, or in flight when the connection was lost
`}},
	},
	{
		name: "a refused publish ends the session",
		pkg:  "verifier",
		test: "TestAMissingExchangeHoldsUpNoOtherTarget",
		says: "a refused publish must not end the session|messages have not come|the channel was closed|not in time",
		edits: []edit{{"verifier/internal/forward/solo.go", `				if channel.connection.conn.Err() == nil {
`, `				if mutant("a refused publish ends the session") && bridge.Refusal(err) != nil {
					return err
				}
				if channel.connection.conn.Err() == nil {
`}},
	},
	{
		name: "a message that the broker refuses is tried for ever",
		pkg:  "verifier",
		test: "TestAMessageThatTheBrokerRefusesIsDeadLettered/no_right_to_the_target",
		says: "not in time|have not come",
		edits: []edit{{"verifier/internal/forward/solo.go", `	case p.Retries != nil:
		f.end(`, `	case p.Retries != nil && mutant("a message that the broker refuses is tried for ever"):
		f.failed(p, Full, noConfirm)
	case p.Retries != nil:
		f.end(`}},
	},
	{
		name: "a session forgets the held targets of the last one",
		pkg:  "verifier",
		test: "TestTheNextSessionKnowsTheCulprit",
		says: "times a channel was closed",
		edits: []edit{{"verifier/verifier.go", `			v.remembered = s.forwarder.Remember(time.Now())
`, `			if !mutant("a session forgets the held targets of the last one") {
				v.remembered = s.forwarder.Remember(time.Now())
			}
`}},
	},
	// Rule 9.
	{
		name: "wait for one transaction after the other",
		pkg:  "verifier",
		test: "TestSlowTransactionsDelayTheirOwnMessagesOnly",
		says: "messages have not come",
		edits: []edit{{"verifier/judge.go", `	j.room.enter(false, misses...)
	j.room.enter(true, again...)`, `	for _, m := range misses {
		for mutant("wait for one transaction after the other") && ctx.Err() == nil {
			if outcome, err := j.proven.Settle(ctx, m.staged.ID, j.opts.SettleWait); err == nil && outcome != driver.StillOpen {
				break
			}
		}
	}
	j.room.enter(false, misses...)
	j.room.enter(true, again...)`}},
	},
	{
		name: "a waiting room that is full stays so",
		pkg:  "verifier",
		test: "TestSlowTransactionsDelayTheirOwnMessagesOnly",
		says: "messages have not come",
		edits: []edit{{"verifier/waitlimits.go", `func (w *waitLimits) setAsideExcess(now time.Time) {
`, `func (w *waitLimits) setAsideExcess(now time.Time) {
	if mutant("a waiting room that is full stays so") {
		return
	}
`}, {"verifier/judge.go", `		leaves := outcome != driver.StillOpen || tooMany || j.limits.overstays(m, time.Now())`,
			`		leaves := outcome != driver.StillOpen || !mutant("a waiting room that is full stays so") && (tooMany || j.limits.overstays(m, time.Now()))`}},
	},
	// Rule 10.
	{
		name: "no prefetch",
		pkg:  "verifier",
		test: "TestUnackedMessagesAreBounded",
		says: "messages were left to others",
		edits: []edit{{"verifier/internal/consume/consumer.go", `	if err := conn.Request(func() error { return ch.Qos(config.Prefetch, 0, false) }); err != nil {
`, `	prefetch := config.Prefetch
	if mutant("no prefetch") {
		prefetch = 0 // no bound
	}
	if err := conn.Request(func() error { return ch.Qos(prefetch, 0, false) }); err != nil {
`}},
	},
	{
		name: "groups are not counted",
		pkg:  "verifier",
		test: "TestMessagesInGroupsAreBounded",
		says: "messages were held, more than a prefetch",
		edits: []edit{{"verifier/internal/consume/consumer.go", `	for c.crowded() {
`, `	for c.open.Load() >= int64(c.Prefetch) && !mutant("groups are not counted") {
`}},
	},
	// Rule 11.
	{
		name: "commit for the caller",
		pkg:  "sender",
		test: "TestTheTransactionStaysTheCallers",
		says: "a statement of ours",
		edits: []edit{{"sender/sender.go", `	if err := staged.Wait(ctx); err != nil {
`, `	err = staged.Wait(ctx)
	if err == nil && mutant("commit for the caller") {
		_, _ = tx.Exec(ctx, "COMMIT")
	}
	if err != nil {
`}},
	},
	{
		name: "roll back for the caller",
		pkg:  "sender",
		test: "TestTheTransactionStaysTheCallers",
		says: "a statement of ours",
		edits: []edit{{"sender/sender.go", `	err = staged.Wait(ctx)
`, `	err = staged.Wait(ctx)
	if err != nil && mutant("roll back for the caller") {
		_, _ = tx.Exec(ctx, "ROLLBACK")
	}
`}},
	},
	{
		name: "make the tables in the caller's transaction",
		pkg:  "sender",
		test: "TestTheTransactionStaysTheCallers",
		says: "a statement of ours",
		edits: []edit{{"sender/staged.go", `		if mutant("publish before record") {
`, `		if mutant("make the tables in the caller's transaction") {
		_, _ = tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS bridge_more (id int)")
	}
		if mutant("publish before record") {
`}},
	},
	// In order, per key.
	{
		name: "nack in an ordered queue",
		pkg:  "verifier",
		test: "TestAnOpenTransactionHoldsItsKeyOnly",
		says: "came after",
		edits: []edit{
			{"verifier/waitlimits.go", `	case m.place.Ordered(): // it keeps its place
		return false
`, `	case m.place.Ordered(): // it keeps its place
		return (mutant("nack in an ordered queue") || mutant("set messages with a key aside")) && age >= w.opts.Patience
`},
			{"verifier/pipeline.go", `	most := max(1, p.waiting.Prefetch/4)`, `	var aside []*message
	for _, m := range messages {
		if m.place.Ordered() {
			p.passed(m)
			if mutant("nack in an ordered queue") {
				m.unacked.HandBack()
				continue
			}
		}
		aside = append(aside, m)
	}
	messages = aside
	most := max(1, p.waiting.Prefetch/4)`},
		},
	},
	{
		name: "set messages with a key aside",
		pkg:  "verifier",
		test: "TestAnOpenTransactionHoldsItsKeyOnly",
		says: "came after",
	},
	{
		name: "two of a key in flight",
		pkg:  "verifier",
		test: "TestATargetThatTakesNothingHoldsItsKeysOnly",
		says: "came after",
		edits: []edit{
			{"verifier/internal/consume/keyorder.go", `len(all) > 0 && all[0] == p && k.turn(p)`, `len(all) > 0 && (all[0] == p || mutant("two of a key in flight")) && k.turn(p)`},
			{"verifier/internal/consume/keyorder.go", `at == 0 && next.ready && k.turn(next)`, `at == 0 && next.ready && !mutant("two of a key in flight") && k.turn(next)`},
		},
	},
	{
		name:  "no single active consumer",
		pkg:   "verifier",
		test:  "TestOneVerifierAtATimeGetsAnOrderedQueue",
		says:  "came after",
		edits: []edit{{"bridge/topology.go", `args["x-single-active-consumer"] = true`, `args["x-single-active-consumer"] = !mutant("no single active consumer")`}},
	},
	{
		name:  "unreadable headers end the connection",
		pkg:   "verifier",
		test:  "TestUnreadableHeadersEndNoSession",
		says:  "have not come",
		edits: []edit{{"bridge/frames.go", `unreadable.Check(payload, maxFrame); why != nil {`, `unreadable.Check(payload, maxFrame); why != nil && !mutant("unreadable headers end the connection") {`}},
	},
	{
		name:  "a direct reply-to is a target",
		pkg:   "verifier",
		test:  "TestADirectReplyToIsNoTarget",
		says:  "not in time|replies came",
		edits: []edit{{"verifier/allowlist.go", `if own || t.DirectReply() {`, `if own || t.DirectReply() && !mutant("a direct reply-to is a target") {`}},
	},
	// Carried messages. Mutants for recording first and for waiting lookups use plain messages,
	// since the row of a carried message is there.
	{
		name: "a carried message that its row does not hold",
		pkg:  "../sender",
		test: "TestATransactionWaitsForMessagesThatAreNotCarried",
		says: "carried false, waited",
		edits: []edit{{"sender/staged.go", `			entries[i].Message, entries[i].NotBefore = m.record, m.notBefore
`, `			if !mutant("a carried message that its row does not hold") {
				entries[i].Message, entries[i].NotBefore = m.record, m.notBefore
			}
`}},
	},
	{
		name: "an ordered message is carried",
		pkg:  "../sender",
		test: "TestATransactionWaitsForMessagesThatAreNotCarried",
		says: "ordered.*: carried true",
		edits: []edit{{"sender/sender.go", `m.OrderKey != "" || len(publishing.Body) > most`,
			`m.OrderKey != "" && !mutant("an ordered message is carried") || len(publishing.Body) > most`}},
	},
	{
		name:  "an ordered message is carried in an outage",
		pkg:   "../sender",
		test:  "TestMessagesWithAKeyFailAtOnceDuringAKnownOutage",
		says:  "FAIL",
		edits: []edit{{"sender/carry.go", `m.carried || m.orderKey != ""`, `m.carried || m.orderKey != "" && !mutant("an ordered message is carried in an outage")`}},
	},
	{
		name: "a claim that never ends",
		pkg:  "../bridge/sqlite",
		test: "TestLedger/carried/a_claim_and_a_touch_move_the_stage_time_by_the_age_of_the_row,_within_bounds",
		says: "is not due after",
		edits: []edit{{"bridge/sqlite/carried.go", `		return conn.SelectContext(ctx, &messages, claim, string(text))
`, `		if mutant("a claim that never ends") {
			defer func() {
				_, _ = conn.ExecContext(ctx, "UPDATE bridge_ledger SET stage_at = stage_at + 365 * 86400000 WHERE id IN (SELECT value ->> 'id' FROM json_each(?))", string(text))
			}()
		}
		return conn.SelectContext(ctx, &messages, claim, string(text))
`}},
	},
	{
		name: "a delayed message is staged before its time",
		pkg:  "../bridge/sqlite",
		test: "TestLedger/carried/a_delayed_message_is_due_at_its_time,_and_no_copy_of_it_is_published_before",
		says: "a row with the stage time .* is due",
		edits: []edit{
			{"bridge/sqlite/carried.go", `	"encoding/json"
`, `	"encoding/json"
	"strings"
`},
			{"bridge/sqlite/carried.go", `func (l *Ledger) cancel(`, `func without(name, condition, instead, statement string) string {
	if mutant(name) {
		return strings.Replace(statement, condition, instead, 1)
	}
	return statement
}

func (l *Ledger) cancel(`},
			{"bridge/sqlite/carried.go", `SelectContext(ctx, &rows, due, `,
				`SelectContext(ctx, &rows, without("a delayed message is staged before its time", "<= look.now", "<= look.now + 7200000", due), `},
		},
	},
	{
		name: "cancel deletes a claimed row",
		pkg:  "../bridge/sqlite",
		test: "TestLedger/carried/cancel_removes_a_row_as_long_as_no_copy_of_its_message_can_exist",
		says: "that is claimed returns true, must return false",
		edits: []edit{{"bridge/sqlite/carried.go", `tx.Exec(ctx, cancel, id`,
			`tx.Exec(ctx, without("cancel deletes a claimed row", " AND stage_at <= recorded_at * 1000", "", cancel), id`}},
	},
	{
		name: "delayed now leaves recorded_at",
		pkg:  "../bridge/sqlite",
		test: "TestAHealthyFileIsWell",
		says: "an advanced row is {ID:",
		edits: []edit{
			{"bridge/sqlite/inspector.go", `import (
`, `import (
	"strings"

`},
			{"bridge/sqlite/inspector.go", `func inspectorOn(`, `func leaving(statement string) string {
	if mutant("delayed now leaves recorded_at") {
		_, rest, _ := strings.Cut(statement, ", stage_at = ")
		return "UPDATE bridge_ledger SET stage_at = " + rest
	}
	return statement
}

func inspectorOn(`},
			{"bridge/sqlite/inspector.go", `	return &Inspector{inspection.`, `	carriedStatements.Advance = leaving(advance)
	return &Inspector{inspection.`},
		},
	},
	{
		name: "delete a carried row before the confirm", // see "delete before confirm" for the edit
		pkg:  "../verifier",
		test: "TestACarriedRowStaysUntilTheConfirm",
		says: "a row is deleted before the confirm",
	},
	{
		name: "a sweep that takes carried rows",
		pkg:  "../bridge/sqlite",
		test: "TestLedger/carried/a_carried_row_of_any_age_is_no_orphan",
		says: `\d+ orphans, must be 1`,
		edits: []edit{
			{"bridge/sqlite/orphans.go", `	"database/sql"
`, `	"database/sql"
	"strings"
`},
			{"bridge/sqlite/orphans.go", `// orphans reads the whole ledger as of the last commit.
`, `func orCarried(statement string) string {
	if mutant("a sweep that takes carried rows") {
		return strings.NewReplacer("AND l.stage_at IS NULL", "", "AND stage_at IS NULL", "").Replace(statement)
	}
	return statement
}

// orphans reads the whole ledger as of the last commit.
`},
			{"bridge/sqlite/orphans.go", `&rows, orphans, `, `&rows, orCarried(orphans), `},
			{"bridge/sqlite/orphans.go", `&swept, sweep, `, `&swept, orCarried(sweep), `},
		},
	},
	{
		name: "a copy joins no other",
		pkg:  "../verifier",
		test: "TestACopySharesTheEndOfTheMessageThatItHasJoined",
		says: "3 messages are judged, must be the first",
		edits: []edit{{"verifier/carried.go", `	if first := c.held[m.staged.ID]; first != nil {
`, `	if first := c.held[m.staged.ID]; first != nil && !mutant("a copy joins no other") {
`}},
	},
	// When a carried message is staged again: the switches of gone_by.pml in tests/model. Their
	// tests have a simulated clock, since on real servers a copy is seldom late enough.
	{
		name: "staged again without a marker", // GONE_MARKER
		pkg:  "../verifier",
		test: "TestNothingIsStagedAgainWithoutAMarker",
		says: "1 are staged again",
		edits: []edit{{"verifier/duerows.go", `return c.row.Unpublished() || c.gone`,
			`return c.row.Unpublished() || c.gone || mutant("staged again without a marker")`}},
	},
	{
		name: "a marker counts for rows that were seen after its look", // GONE_FIRST_SEEN
		pkg:  "../verifier",
		test: "TestAMarkerStagesAgainOnlyRowsSeenBeforeItsLook/a_row_that_was_seen_after_its_look",
		says: "1 are staged again",
		edits: []edit{{"verifier/duerows.go", `		if c.before(look) && !left[id] && !d.carried.has(id) {
			c.gone = true`,
			`		if (c.before(look) || mutant("a marker counts for rows that were seen after its look")) && !left[id] && !d.carried.has(id) {
			c.gone = true`}},
	},
	{
		name: "a marker counts for rows that were seen just before its look", // GONE_PAUSE_BEFORE_LOOK
		pkg:  "../verifier",
		test: "TestAMarkerStagesAgainOnlyRowsSeenBeforeItsLook/a_row_that_was_seen_just_before_its_look",
		says: "1 are staged again",
		edits: []edit{{"verifier/duerows.go", `func (c candidate) before(look time.Time) bool {`,
			`func (c candidate) before(look time.Time) bool {
	if mutant("a marker counts for rows that were seen just before its look") {
		look = look.Add(seenBefore)
	}
	`}},
	},
	{
		name: "a marker counts for rows that only another verifier has seen", // GONE_SEEN_BY_READER
		pkg:  "../verifier",
		test: "TestAMarkerStagesAgainOnlyRowsSeenBeforeItsLook/a_row_that_only_another_verifier_has_seen_long_before_its_look",
		says: "1 are staged again",
		edits: []edit{{"verifier/marker.go", `		ms.wait = markerOften
`, `		ms.wait = markerOften
		if mutant("a marker counts for rows that only another verifier has seen") {
			due, _, _ := ms.ledger.Due(context.Background(), driver.DueRow{}, dueLimit)
			for _, row := range due {
				ms.rows.candidates[row.ID] = candidate{row: row, seen: m.Look.Add(-seenBefore)}
			}
		}
`}},
	},
	{
		name: "a marker counts before it has come from the waiting queue", // GONE_BY_WAITING_QUEUE
		pkg:  "../verifier",
		test: "TestAMarkerWaitsForItsPauses",
		says: "it has shown something before it came to the waiting queue",
		edits: []edit{{"verifier/marker.go", `	confirmed := false
`, `	for _, m := range ripe {
		if mutant("a marker counts before it has come from the waiting queue") {
			ms.rows.goneBy(m.Look)
		}
	}
	confirmed := false
`}},
	},
	{
		name: "a marker goes to the waiting queue at once", // GONE_PAUSE_BEFORE_WAITING
		pkg:  "../verifier",
		test: "TestAMarkerWaitsForItsPauses",
		says: "it is passed on too soon",
		edits: []edit{{"verifier/marker.go", `	age := time.Since(m.taken)
`, `	age := time.Since(m.taken)
		if mutant("a marker goes to the waiting queue at once") && queue == ms.queues.staging {
			age += pause
		}
`}},
	},
	{
		name: "a marker from the waiting queue counts at once", // GONE_PAUSE_BEFORE_READING
		pkg:  "../verifier",
		test: "TestAMarkerWaitsForItsPauses",
		says: "it counts too soon",
		edits: []edit{{"verifier/marker.go", `	age := time.Since(m.taken)
`, `	age := time.Since(m.taken)
		if mutant("a marker from the waiting queue counts at once") && queue == ms.queues.waiting {
			age += pause
		}
`}},
	},
	{
		name: "the stage time of a held message stays", // GONE_TOUCH
		pkg:  "../verifier",
		test: "TestTheStageTimeOfAHeldMessageIsMovedOn",
		says: "it is touched 0 times once its target is held",
		edits: []edit{{"verifier/touch.go", `	held := carried.untouched(`, `	if mutant("the stage time of a held message stays") {
		return touchInterval, nil
	}
	held := carried.untouched(`}},
	},
	{
		name: "a message is set aside and its stage time stays", // GONE_TOUCH
		pkg:  "../verifier",
		test: "TestAMessageIsTouchedBeforeItIsSetAside",
		says: "it was touched 0 times, must be 1",
		edits: []edit{{"verifier/touch.go", `	return m.committed && m.carried != nil && `,
			`	return m.committed && m.carried != nil && !mutant("a message is set aside and its stage time stays") && `}},
	},
	{
		name: "a row counts as seen before its stage time was moved on", // GONE_READ_AGAIN
		pkg:  "../verifier",
		test: "TestAMarkerStagesAgainOnlyRowsSeenBeforeItsLook/a_row_that_was_touched_since,_and_is_due_again",
		says: "1 are staged again",
		edits: []edit{
			{"verifier/duerows.go", `!seen[id] && at.After(from) &&`,
				`!seen[id] && !mutant("a row counts as seen before its stage time was moved on") && at.After(from) &&`},
			{"verifier/duerows.go", `	d.candidates[row.ID] = candidate{row: row, seen: at}
}`, `	if c, ok := d.candidates[row.ID]; ok && mutant("a row counts as seen before its stage time was moved on") {
		at = c.seen
	}
	d.candidates[row.ID] = candidate{row: row, seen: at}
}`},
		},
	},
	{
		name: "a claim of a row whose stage time has moved on", // GONE_READ_AGAIN, in the ledger
		pkg:  "../bridge/sqlite",
		test: "TestLedger/carried/a_claim_of_a_row_that_was_touched,_claimed_or_forgotten_returns_nothing",
		says: "messages of .* IDs are claimed, must be",
		edits: []edit{{"bridge/sqlite/carried.go", `claim, string(text))
`, `without("a claim of a row whose stage time has moved on", "(id, stage_at) IN (SELECT value ->> 'id', value ->> 'at'", "id IN (SELECT value ->> 'id'", claim), string(text))
`}},
	},
	// Rule 12.
	{
		name: "a row that is left ends the session",
		pkg:  "verifier",
		test: "TestALockedRowHoldsUpNoOtherMessage/postgres",
		says: `not in time|stats`,
		edits: []edit{{"verifier/pipeline.go", `		p.forgetter.delete(ctx, undeletedRows(batch))
`, `		p.forgetter.delete(ctx, undeletedRows(batch))
		if p.forgetter.count() > 0 && mutant("a row that is left ends the session") {
			return errLocked
		}
`}},
	},
	{
		name: "the end of a session waits for a sweep that hangs",
		pkg:  "verifier",
		test: "TestASideJobThatHangsHoldsNoSessionUp",
		says: "not in time",
		edits: []edit{{"verifier/sweep.go", `	swept, err := inTime(`, `	if mutant("the end of a session waits for a sweep that hangs") {
		_, _ = s.ledger.Sweep(ctx, s.opts.SweepAge, sweepLimit)
	}
	swept, err := inTime(`}},
	},
	{
		name: "a side job ends the session",
		pkg:  "verifier",
		test: "TestMessagesDependOnNoSideJob/no_right",
		says: `\d+ sessions|not in time`,
		edits: []edit{{"verifier/sweep.go", `		return s.ledger.Sweep(ctx, s.opts.SweepAge, sweepLimit)
	})
`, `		return s.ledger.Sweep(ctx, s.opts.SweepAge, sweepLimit)
	})
	if err != nil && mutant("a side job ends the session") {
		s.consuming.Close()
	}
`}},
	},
}

// shorterWaits makes the tests that must fail give up earlier.
var shorterWaits = mutant{name: "sooner", edits: []edit{
	{"tests/servers/servertest/patience.go", `const Patience = 3 * time.Minute`, `const Patience = 30 * time.Second`},
}}

// overlay returns a file for go build -overlay that puts all mutants into the product's files.
func overlay(t *testing.T) string {
	t.Helper()
	const root = "../.."
	texts := make(map[string]string) // by file
	for _, m := range append(slices.Clone(mutants), shorterWaits) {
		for i, e := range m.edits {
			if texts[e.file] == "" {
				text, err := os.ReadFile(filepath.Join(root, e.file))
				if err != nil {
					t.Fatal(err)
				}
				texts[e.file] = string(text)
			}
			if n := strings.Count(texts[e.file], e.old); n != 1 {
				t.Errorf("%s holds the text of the mutant's edit %d %d times, must be once: find the place of the rule %q and adapt the edit:\n%s",
					e.file, i+1, n, m.name, e.old)
				continue
			}
			texts[e.file] = strings.Replace(texts[e.file], e.old, e.new, 1)
			pkg := filepath.Dir(e.file)
			texts[pkg+"/mutant.go"] = "package " + filepath.Base(pkg) + theSwitch
		}
	}
	return servertest.Overlay(t, root, texts)
}

// The test fails within seconds if the text of an edit has moved.
func TestMutantsFindTheirPlaces(t *testing.T) {
	servertest.Go(t, "build", "-overlay", overlay(t),
		"../../bridge/...", "../../sender/...", "../../verifier/...", "../../idempotency/...")
}

func TestMutantsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("plays scenarios with processes, and runs tests again")
	}
	t.Parallel()
	overlay := overlay(t)
	if t.Failed() {
		t.FailNow()
	}
	program := world.Build(t, overlay)
	broker, database := servertest.RabbitMQ(t), servertest.Postgres(t)
	shared, err := servers.Shared{RabbitMQ: &broker, Postgres: &database}.Environment()
	if err != nil {
		t.Fatal(err)
	}
	tests := make(map[string]string) // by package
	for _, m := range mutants {
		if m.pkg != "" && tests[m.pkg] == "" {
			tests[m.pkg] = buildTests(t, overlay, m.pkg)
		}
	}
	for _, m := range mutants {
		t.Run(m.name, func(sub *testing.T) {
			switch {
			case m.pkg == "":
				sub.Parallel()
				playMutant(sub, program, m)
			case inVain.MatchString(m.says):
				// The test waits long and uses almost no processor. So it runs beside all others,
				// and reports its result when they have ended.
				ended := make(chan error, 1)
				go func() { ended <- runTest(tests[m.pkg], shared, m) }()
				t.Cleanup(func() {
					if err := <-ended; err != nil {
						t.Errorf("%s: %v", m.name, err)
					}
				})
			default:
				sub.Parallel()
				if err := runTest(tests[m.pkg], shared, m); err != nil {
					sub.Fatal(err)
				}
			}
		})
	}
}

// inVain matches the output of a test whose wait timed out.
var inVain = regexp.MustCompile(`have not come|not in time`)

// playMutant plays the mutant's scenario. The judge must find the mutant's violation at the end.
func playMutant(t *testing.T, program string, m mutant) {
	t.Helper()
	s := play(t, program, m.name, m.scenario)
	s.Must("finish", s.Finish(t.Context()))
	_, violations, err := s.Judge(t.Context())
	s.Must("judge", err)
	t.Log(world.Summary(violations))
	if !slices.ContainsFunc(violations, func(v world.Violation) bool { return v.Kind == m.caught }) {
		t.Fatalf("the mutant was not caught: no message is %q", m.caught)
	}
}

// buildTests builds the tests of a package, with all mutants in the product.
func buildTests(t *testing.T, overlay, pkg string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), path.Base(pkg)+".test")
	servertest.Go(t, "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", program,
		path.Join("github.com/twoqueue/twoqueue/tests", pkg))
	return program
}

// runTest runs the test that must fail because of the mutant, with an output that matches m.says.
// The usual test run shows that the test passes without the mutant.
func runTest(program, shared string, m mutant) error {
	const limit = 5 * time.Minute // the test binary's limit, which prints where it hangs; ctx ends a binary that ignores it
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.run=^"+m.test+"$", "-test.count=1", "-test.timeout="+limit.String())
	cmd.Dir = filepath.Join("..", m.pkg)
	cmd.Env = append(os.Environ(), shared, parts.MutantVariable+"="+m.name)
	var written bytes.Buffer
	cmd.Stdout, cmd.Stderr = &written, &written
	child, err := children.Start(cmd)
	if err != nil {
		return fmt.Errorf("start the tests of %s: %w", m.pkg, err)
	}
	err = child.Err() // returns after limit and the limit of children at the latest
	output := written.String()
	if !strings.Contains(output, "--- FAIL: "+m.test) || !regexp.MustCompile(m.says).MatchString(output) {
		return fmt.Errorf("the mutant was not caught: %s must fail and say %q: %v\n%s", m.test, m.says, err, output)
	}
	return nil
}
