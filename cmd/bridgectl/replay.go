package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge"
	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/cmd/internal/database"
	"github.com/twoqueue/twoqueue/cmd/internal/variables"
)

// A replayPlan has the messages to publish for a dead message, or the reason to publish none.
type replayPlan struct {
	out     []bridge.Outgoing
	forget  []uuid.UUID // rows of the ledger to delete when the message is safe
	note    string      // the evidence for the plan
	refusal string
}

// A planner decides how dead messages are replayed.
//
// A message goes to its target, in the form that the receiver expects, and never back into the
// staging queue. The row of a committed message is deleted as soon as the message is safe in the
// dead queue, so a verifier would judge it rolled back and drop it.
//
// A message that is known to be committed may go. Either its row is in the ledger now, and even a
// lookup that does not wait may believe a row (rule 3 of package bridge), or a verifier's verdict
// says so. Any other message may have been rolled back.
//
// The verdict is a header, and every login that may write to the dead queue can forge it. An own
// table keeps its rows, so a verdict without a row is not believed there. A ledger with its own
// tables has deleted the row of a dead-lettered message and cannot confirm the verdict. With such a
// ledger, or without one at hand, the planner believes the header and the plan says so.
type planner struct {
	ledger func(context.Context) (*database.Ledger, error) // returns nil without an error if none is at hand
	to     *bridge.Target                                  // instead of the messages' own targets
	force  bool

	permits func(wire.Staged) bool // whether a verifier would forward a message; nil: it would forward all
	listed  bool                   // permits has the verifiers' allow-list
}

// plan decides about messages, with one lookup for all.
func (p *planner) plan(ctx context.Context, messages []*deadMessage) ([]replayPlan, error) {
	known, err := p.lookUp(ctx, messages)
	if err != nil {
		return nil, err
	}
	plans := make([]replayPlan, len(messages))
	for i, m := range messages {
		plans[i] = p.decide(m, known)
	}
	return plans, nil
}

// knowledge is the answer of the ledger at hand about some messages.
type knowledge struct {
	identity uuid.UUID // zero: no ledger was asked
	keeps    bool      // the ledger keeps its rows
	swept    time.Time // the watermark of its sweeps
	rows     map[uuid.UUID]bool
}

func (p *planner) lookUp(ctx context.Context, messages []*deadMessage) (known knowledge, err error) {
	var ids []uuid.UUID
	for _, m := range messages {
		for _, member := range m.members {
			ids = append(ids, member.ID)
		}
	}
	if len(ids) == 0 {
		return known, nil
	}
	ledger, err := p.ledger(ctx)
	if err != nil || ledger == nil {
		return known, err
	}
	known = knowledge{identity: ledger.Identity(), keeps: ledger.Features().KeepsRows, rows: make(map[uuid.UUID]bool)}
	const chunk = 1000
	for len(ids) > 0 {
		n := min(chunk, len(ids))
		committed, _, err := ledger.Committed(ctx, ids[:n])
		if err != nil {
			return known, err
		}
		for _, id := range committed {
			known.rows[id] = true
		}
		ids = ids[n:]
	}
	if ledger.Features().Sweeps {
		known.swept, err = ledger.SweptBefore(ctx)
	}
	return known, err
}

func (p *planner) decide(m *deadMessage, known knowledge) (plan replayPlan) {
	if m.receiver != "" {
		return p.toReceiver(m)
	}
	if m.wrong != nil {
		return p.malformed(m)
	}
	var missing *wire.Staged
	for i, member := range m.members {
		if member.Ledger == known.identity && known.rows[member.ID] {
			plan.forget = append(plan.forget, member.ID)
		} else if missing == nil {
			missing = &m.members[i]
		}
	}
	switch {
	case missing == nil:
		plan.note = "its row was in the ledger"
	case m.Verdict != driver.Committed.String():
		plan.refusal = unknownText(m, *missing, known)
	case missing.Ledger == known.identity && known.keeps:
		plan.refusal = "its header says committed, and its table has no row with its ID: the header is forged, or the row was deleted"
	default:
		plan.note = "by its header " + wire.HeaderDeadVerdict + ": " + unaskedText(*missing, known.identity)
	}
	if plan.refusal != "" && !p.force {
		return replayPlan{refusal: plan.refusal + "; --force sends it anyway"}
	}
	plan.refusal = ""
	if !p.force && p.forbids(m) {
		return replayPlan{refusal: "the verifiers' allow-list forbids its target; use --force, or set BRIDGE_ALLOW to the verifiers' value"}
	}
	for _, member := range m.members {
		plan.out = append(plan.out, p.outgoing(member))
	}
	return plan
}

// toReceiver plans to send a receiver's message back to the receiver's queue. Through its exchange
// other receivers would get it too. It needs no lookup: a receiver gets committed messages only.
func (p *planner) toReceiver(m *deadMessage) replayPlan {
	to := bridge.Target{RoutingKey: m.receiver}
	if p.to != nil {
		to = *p.to
	}
	return replayPlan{out: []bridge.Outgoing{{Target: to, Publishing: wire.ReplayToReceiver(m.delivery)}},
		note: "to the queue of its receiver; its attempts start again at 1"}
}

// forbids reports whether a verifier would not forward a message to its target: by BRIDGE_ALLOW or,
// if that is not set, by the dead reason that a verifier gave. The user answers for the target of
// --to.
func (p *planner) forbids(m *deadMessage) bool {
	if p.to != nil {
		return false
	}
	for _, member := range m.members {
		if p.permits != nil && !p.permits(member) {
			return true
		}
	}
	return m.Reason == wire.DeadNotAllowed && !p.listed
}

// unknownText explains why it is not known whether a message is committed.
func unknownText(m *deadMessage, s wire.Staged, known knowledge) string {
	text := "the outcome of its transaction is unknown: "
	if m.Members > 0 {
		text = "the outcome of the transaction of its member " + s.ID.String() + " is unknown: "
	}
	switch {
	case known.identity == uuid.Nil:
		text += "BRIDGE_DATABASE_URL is not set, so its ledger cannot be asked"
	case s.Ledger != known.identity:
		text += "it belongs to ledger " + s.Ledger.String() + "; set BRIDGE_DATABASE_URL to that ledger's database"
	default:
		text += "it has no row in the ledger. Unless its transaction is still open (see bridgectl message), it was " + absentText(m, known.swept)
	}
	return text
}

// unaskedText says why the ledger at hand cannot confirm a verdict.
func unaskedText(s wire.Staged, identity uuid.UUID) string {
	switch {
	case identity == uuid.Nil:
		return "BRIDGE_DATABASE_URL is not set, so its ledger was not asked"
	case s.Ledger != identity:
		return "it belongs to ledger " + s.Ledger.String() + ", not to the ledger of BRIDGE_DATABASE_URL"
	}
	return "the ledger has no row, as after a verifier's verdict"
}

// outgoing returns the message in the form for its receiver.
func (p *planner) outgoing(s wire.Staged) bridge.Outgoing {
	out := bridge.Outgoing{Target: s.Target(), Publishing: s.Message.Publishing}
	if p.to != nil {
		// The keys in CC and BCC are meant for the message's own target.
		out.Target = *p.to
		delete(out.Headers, "CC")
		delete(out.Headers, "BCC")
	}
	return out
}

// malformed plans to send a malformed message unchanged, if the user gave --to and --force.
func (p *planner) malformed(m *deadMessage) (plan replayPlan) {
	if p.to == nil || !p.force {
		plan.refusal = m.wrong.Error() + "; discard it, or send it unchanged with --to EXCHANGE:KEY --force"
		return plan
	}
	publishing, err := asItIs(m.delivery, *p.to)
	if err != nil {
		plan.refusal = "it cannot be sent at all: " + err.Error()
		return plan
	}
	plan.out = []bridge.Outgoing{{Target: *p.to, Publishing: publishing}}
	return plan
}

// asItIs returns a malformed message without the headers that the bridge and the broker have added.
// It sets the ID and the headers that a staged message must have, parses the message, and restores
// its ID.
func asItIs(d amqp.Delivery, to bridge.Target) (amqp.Publishing, error) {
	id := d.MessageId
	headers := make(amqp.Table, len(d.Headers)+3)
	for name, value := range d.Headers {
		if name != "CC" && name != "BCC" && !strings.HasPrefix(name, "x-bridge-") {
			headers[name] = value
		}
	}
	headers[wire.HeaderLedger] = uuid.Max.String()
	headers[wire.HeaderExchange], headers[wire.HeaderRoutingKey] = to.Exchange, to.RoutingKey
	d.Headers, d.MessageId, d.Expiration = headers, uuid.Max.String(), ""
	staged, err := wire.Parse(d)
	if err != nil {
		return amqp.Publishing{}, err
	}
	publishing := staged.Message.Publishing
	publishing.MessageId = id
	return publishing, nil
}

// parseTarget reads EXCHANGE:KEY, in the form of BRIDGE_ALLOW; :NAME is a queue.
func parseTarget(text string) (*bridge.Target, error) {
	exchange, key, ok := variables.Target(text)
	switch {
	case !ok:
		return nil, fmt.Errorf("%q is not EXCHANGE:KEY; write :%s for the queue of this name", text, text)
	case exchange == "" && key == "":
		return nil, errors.New("names neither an exchange nor a queue; write EXCHANGE:KEY, or :NAME for a queue")
	case len(exchange) > 255 || len(key) > 255:
		return nil, errors.New("exchange and routing key have at most 255 bytes")
	}
	return &bridge.Target{Exchange: exchange, RoutingKey: key}, nil
}
