package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/bridge/wire"
	"github.com/twoqueue/twoqueue/cmd/internal/advice"
	"github.com/twoqueue/twoqueue/cmd/internal/terminal"
)

// conclude sets Meaning and Next from the facts.
func (f *messageFacts) conclude() {
	say := func(format string, args ...any) { f.Meaning = append(f.Meaning, fmt.Sprintf(format, args...)) }
	for _, claim := range f.Inbox {
		switch {
		case claim.State == stateDone:
			say("Consumer %s has handled it.", claim.Consumer)
		case claim.State != "":
			say("Consumer %s has claimed it and not finished: %s%s.", claim.Consumer, claim.State, prefixed(": ", claim.Error))
		}
	}
	f.concludeDead(say)
	if f.Ledger != nil {
		f.concludeRow(say)
	}
	if len(f.Meaning) == 0 {
		say("Nothing is known about it.")
	}
	switch {
	case f.Next != "":
	case len(f.Failures) > 0:
		f.Next = "Ask again when the servers that failed answer."
	default:
		f.Next = "Nothing."
	}
}

func (f *messageFacts) concludeDead(say func(string, ...any)) {
	if f.Dead == nil {
		return
	}
	for _, m := range f.Dead.Found {
		say("It is in the dead queue: %s%s.", m.Reason, prefixed(", ", m.Text))
		if m.Verdict == driver.Committed.String() {
			say("Its transaction committed, so its receiver should have it.")
			f.Next = "It stays there until dead replay sends it to its target, or dead discard removes it."
		} else {
			say("No verifier could judge it.")
			f.Next = "It stays there until dead discard removes it, or dead replay sends it."
		}
	}
}

func (f *messageFacts) concludeRow(say func(string, ...any)) {
	dead := f.Dead != nil && len(f.Dead.Found) > 0
	handled := slices.ContainsFunc(f.Inbox, func(c inboxClaim) bool { return c.State != "" })
	dropped := f.Dropped != nil && len(f.Dropped.At) > 0
	switch {
	case f.Ledger.State == rowOpen:
		say("The transaction that recorded it is still open.")
		if len(f.Ledger.Holders) == 0 {
			say("Which session holds it cannot be seen with this login.")
		}
		f.Next = "If the transaction commits, a verifier forwards the message; if it rolls back, a verifier drops it."
	case f.Ledger.State == rowCommitted && dead:
		say("Its row is in the ledger: its transaction committed.")
		f.Next = "It stays there until dead replay sends it to its target, or dead discard removes it."
	case f.Ledger.State == rowCommitted && handled && f.isCarried():
		say("Its row is still in the ledger and holds the message: the message was forwarded, and its row not deleted yet.")
		f.Next = "A verifier deletes the row, or stages the message again: a duplicate, which the inbox absorbs."
	case f.Ledger.State == rowCommitted && f.Ledger.Delayed != nil:
		say("It is delayed until %s: its row is in the ledger and holds the message, its transaction committed, and no copy of it was published.", f.Ledger.Delayed.Format(time.RFC3339))
		f.Next = "A verifier stages it at that time. Sender.Cancel or delayed cancel takes it back until then, and delayed now has it staged at once."
	case f.Ledger.State == rowCommitted && f.isCarried():
		say("Its row is in the ledger and holds the message: its transaction committed, and the message cannot get lost with a queue.")
		f.concludeCarried(say)
	case f.Ledger.State == rowCommitted && handled:
		say("Its row is still in the ledger: the message was forwarded, and its row not deleted yet.")
		f.Next = "A verifier deletes the row, or sweeps it as an orphan later."
	case f.Ledger.State == rowCommitted:
		say("Its row is in the ledger: its transaction committed, and no verifier has deleted the row after forwarding it.")
		f.concludeForward(say)
	case dead:
		f.concludeDeadRow(say, f.Dead.Found[0])
	case dropped:
		say("No row is in the ledger, and a copy is in the audit queue: its transaction rolled back, or the message had been forwarded before. A verifier dropped the copy at %s.", f.Dropped.At[0].UTC().Format("2006-01-02 15:04:05"))
	case handled:
		say("No row is in the ledger: it was forwarded, and the row deleted.")
	default:
		say("No row is in the ledger, and no transaction is open that could bring one: it was forwarded and the row deleted, or its transaction rolled back, or there never was such a message.")
		n := f.ready
		if f.Held != nil {
			n += int(*f.Held)
		}
		if n > 0 {
			f.Next = fmt.Sprintf("If it is still in the queues of the verifiers (%s), a verifier drops it.", count(n, "message"))
		}
	}
}

// isCarried reports whether the row carries the message.
func (f *messageFacts) isCarried() bool { return f.Ledger != nil && f.Ledger.Carried != nil }

// isMissing reports whether isAlone is true of a row that carries no message: the message may be lost.
func (f *messageFacts) isMissing() bool { return f.isAlone() && !f.isCarried() }

// isAlone reports whether a committed row older than lostAge is the only trace of the message, and
// the queues of this topology were looked at completely. If Held is nil, verifiers may still hold
// the message.
func (f *messageFacts) isAlone() bool {
	nowhere := f.Queues != nil && f.ready == 0 && (f.Held == nil || *f.Held == 0) && f.Dead != nil && len(f.Dead.Found) == 0 && f.Dead.LookedAt >= f.Dead.Depth
	old := f.Ledger != nil && f.Ledger.State == rowCommitted && f.Ledger.RecordedAt != nil && time.Since(*f.Ledger.RecordedAt) > lostAge
	return nowhere && old
}

// concludeCarried is for a committed message that its row carries. The operator must not send it
// again.
func (f *messageFacts) concludeCarried(say func(string, ...any)) {
	switch c := f.Ledger.Carried; {
	case f.isAlone():
		say("No message is ready in the queues of this topology's verifiers%s.", map[bool]string{true: ", and they hold none"}[f.Held != nil])
		f.Next = "A verifier stages it from its row at the stage time. If the row is still there a minute after that time, verifiers cannot stage it: their log says why, and the doctor checks the rights of the login. The row holds the message: do not send it again."
	case !c.Published:
		f.Next = "No copy of it was published: a verifier stages it from the row as soon as it reaches the database and the broker. If the row stays, the verifiers' log says why."
	default:
		f.Next = "A verifier forwards the copy in the queues. If there is none, a verifier stages the message from the row after the stage time. If the row stays, the verifiers' log says why."
	}
}

// concludeForward is for a committed message that is not carried, not dead and not handled.
func (f *messageFacts) concludeForward(say func(string, ...any)) {
	if f.isMissing() && f.Held != nil {
		say("No message is ready in the queues of this topology's verifiers, and they hold none. Unless it was sent to another staging queue, it was forwarded and its row was left, or it is lost: a queue was purged or deleted, the message expired, or a verifier that ran on a copy of the database dropped it.")
		f.Next = "If other staging queues use this ledger, ask with --queue for each. Ask the receiver's inbox. If the receiver does not have it, send it again from your own data. Only then sweep its row (orphans sweep)."
		return
	}
	f.Next = "A verifier forwards the message when it has received it and the target accepts it. A verifier may hold the message because the target accepts nothing: its log says 'target is unavailable', and its status page names the target."
	if f.isMissing() {
		f.Next += " If no verifier holds it, it may be lost: the management API (BRIDGE_MANAGEMENT_URL) reports how many messages they hold, if its statistics are on."
	}
}

// concludeDeadRow is for a dead message without a row in the ledger at hand.
func (f *messageFacts) concludeDeadRow(say func(string, ...any), m *deadMessage) {
	switch {
	case m.Verdict == driver.Committed.String():
		say("No row is in the ledger: it was deleted once the message was safe in the dead queue.")
	case m.Ledger != "" && !strings.EqualFold(m.Ledger, f.Ledger.Identity.String()):
		say("The ledger of BRIDGE_DATABASE_URL cannot judge it: it belongs to ledger %s.", m.Ledger)
		f.Next = "With that ledger's database in BRIDGE_DATABASE_URL, dead replay checks whether it is committed. It stays in the dead queue until dead replay sends it, or dead discard removes it."
	default:
		say("No row is in the ledger: %s.", absentText(m, f.Ledger.sweptBefore))
		f.Next = "It stays there until dead discard removes it, or dead replay --force sends it."
	}
}

// sweepMargin bounds the difference between the clocks of senders and databases ('The sweep' in
// package driver).
const sweepMargin = 30 * time.Minute

// absentText explains why a dead message, or a member of a dead group, has no row and can get none.
func absentText(m *deadMessage, sweptBefore time.Time) string {
	if m.Reason == wire.DeadSwept || !sweptBefore.IsZero() && (m.StagedAt == nil || m.StagedAt.Before(sweptBefore.Add(sweepMargin))) {
		return "rolled back, or it was forwarded before, or its row was removed as an orphan: ask the inbox and your own data"
	}
	if m.Members > 0 {
		return "rolled back, unless it was forwarded before (ask the inbox). Other members of its group may be committed: discarding would lose them"
	}
	return "rolled back, unless it was forwarded before (ask the inbox): discard it"
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

func (f *messageFacts) write(p *page) {
	p.title("message " + f.ID.String())
	var rows [][]string
	add := func(name, format string, args ...any) {
		rows = append(rows, []string{name, fmt.Sprintf(format, args...)})
	}
	if f.CreatedAt != nil {
		add("created", "%s", when(f.CreatedAt))
	}
	notAsked := func(variable string) string {
		if f.asked[variable] {
			return "not known"
		}
		return "not asked: " + variable + " is not set"
	}
	if l := f.Ledger; l == nil {
		add("ledger", "%s", notAsked("BRIDGE_DATABASE_URL"))
	} else {
		add("ledger", "%s", map[string]string{
			rowCommitted: "committed, the row is there", rowOpen: "a transaction that has recorded it is open", rowAbsent: "no row, and none can come",
		}[l.State])
		if l.RecordedAt != nil {
			add("recorded", "%s", when(l.RecordedAt))
		}
		for _, h := range l.Holders {
			add("held by", "%s", holderText(h))
		}
	}
	if f.isCarried() {
		c := f.Ledger.Carried
		add("carried", "by its row, %s, stage time %s", humanize.Bytes(uint64(c.Size)), whenStaged(c.StageAt))
		if until := f.Ledger.Delayed; until != nil {
			add("delayed until", "%s", whenStaged(*until))
		}
	}
	if f.Dead == nil && f.Queues == nil {
		add("queues", "%s", notAsked("BRIDGE_AMQP_URL"))
	} else {
		f.queueRows(add)
	}
	for _, claim := range f.Inbox {
		state := claim.State
		if state == "" {
			state = "not claimed"
		}
		add("inbox of "+claim.Consumer, "%s%s", state, prefixed(": ", claim.Error))
	}
	switch {
	case f.Inbox == nil:
		add("inbox", "%s", notAsked("BRIDGE_INBOX_URL"))
	case len(f.Inbox) == 0:
		add("inbox", "not in it")
	}
	f.Failures.write(p)
	p.table(nil, rows)
	p.space()
	for _, sentence := range f.Meaning {
		p.line("%s", sentence)
	}
	p.write(p.paint(bold, "Next:") + " " + terminal.Plain(f.Next) + "\n")
}

// whenStaged returns a stage time, which may be in the future, as text.
func whenStaged(at time.Time) string {
	if left := time.Until(at); left > 0 {
		return at.UTC().Format(time.RFC3339) + " (in " + spanText(left) + ")"
	}
	return when(&at)
}

func (f *messageFacts) queueRows(add func(name, format string, args ...any)) {
	notAmong := func(seen, depth int) string {
		if seen < depth {
			return fmt.Sprintf("not among the first %d of %d", seen, depth)
		}
		return fmt.Sprintf("not among the %d there", seen)
	}
	add("on its way", "%s", f.onWayText())
	switch d := f.Dead; {
	case d == nil:
		add("dead queue", "not known")
	case len(d.Found) == 0:
		add("dead queue", "%s", notAmong(d.LookedAt, d.Depth))
	default:
		for _, m := range d.Found {
			add("dead queue", "%s, verdict %s, for %s, since %s", m.Reason, m.Verdict, m.target(), when(m.DeadAt))
		}
	}
	switch d := f.Dropped; {
	case d == nil:
	case len(d.At) == 0:
		add("audit queue", "%s", notAmong(d.LookedAt, d.Depth))
	default:
		add("audit queue", "dropped at %s", when(&d.At[0]))
	}
}

// onWayText returns how many messages the queues of the verifiers have, and how many the verifiers
// hold.
func (f *messageFacts) onWayText() string {
	if f.Queues == nil {
		return "not known"
	}
	text := fmt.Sprintf("not looked for; %d ready", f.ready)
	switch {
	case f.Held == nil:
		return text + "; the number that verifiers hold needs BRIDGE_MANAGEMENT_URL"
	case *f.Held == 0:
		return text + "; verifiers hold none"
	}
	return text + fmt.Sprintf("; verifiers hold %d, perhaps this one", *f.Held)
}

// holderText returns a session in one line.
func holderText(h inspect.Holder) string {
	parts := []string{"session " + h.Session}
	for _, part := range []struct{ name, value string }{{"login", h.Login}, {"program", h.Program}, {"host", h.Host}} {
		if part.value != "" {
			parts = append(parts, part.name+" "+part.value)
		}
	}
	if h.State != "" {
		parts = append(parts, h.State)
	}
	if !h.Since.IsZero() {
		parts = append(parts, "open for "+since(&h.Since))
	}
	if h.Statement != "" {
		parts = append(parts, "last statement: "+cut(advice.Line(h.Statement), 100))
	}
	return strings.Join(parts, ", ")
}
