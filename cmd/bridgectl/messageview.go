package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/inspect"
	"github.com/twoqueue/twoqueue/cmd/internal/mend"
	"github.com/twoqueue/twoqueue/cmd/internal/terminal"
)

// conclude says in words what the facts mean, and what comes next.
func (f *messageFacts) conclude() {
	say := func(format string, args ...any) { f.Meaning = append(f.Meaning, fmt.Sprintf(format, args...)) }
	for _, claim := range f.Inbox {
		switch {
		case claim.State == stateDone:
			say("Consumer %s has handled it.", claim.Consumer)
		case claim.State != "":
			say("Consumer %s has claimed it and is not done: %s%s.", claim.Consumer, claim.State, prefixed(": ", claim.Error))
		}
	}
	f.concludeDead(say)
	if f.Parked != nil && f.Parked.Found != nil {
		say("It is parked in the database: its transaction committed while the broker was out.")
		f.Next = "A verifier puts it into the staging queue when the broker is back."
	}
	if f.Staging != nil && len(f.Staging.Found) > 0 {
		say("It is in queue %s.", strings.Join(f.Staging.Found, " and "))
	}
	if f.Ledger != nil {
		f.concludeRow(say)
	}
	if len(f.Meaning) == 0 {
		say("Nothing is known about it.")
	}
	if f.Next == "" {
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
		f.Next = "When the transaction commits a verifier forwards it, when it rolls back a verifier drops it."
	case f.Ledger.State == rowCommitted && f.Parked != nil && f.Parked.Found != nil: // said already
	case f.Ledger.State == rowCommitted && dead:
		say("Its row is in the ledger: its transaction committed.")
		f.Next = "It stays there until dead replay sends it to its target, or dead discard removes it."
	case f.Ledger.State == rowCommitted && handled:
		say("Its row is in the ledger still: it has been forwarded, and the row has not been deleted since.")
		f.Next = "A verifier deletes the row, or sweeps it as an orphan later."
	case f.Ledger.State == rowCommitted:
		say("Its row is in the ledger: its transaction committed, and no verifier has deleted the row after forwarding it.")
		f.Next = "A verifier forwards it as soon as it has it. If one has forwarded it already and died, the row is an orphan, which a sweep removes."
	case dead:
		f.concludeDeadRow(say, f.Dead.Found[0])
	case dropped:
		say("No row is in the ledger, and a copy is in the audit queue: its transaction rolled back, and a verifier dropped it at %s.", f.Dropped.At[0].UTC().Format("2006-01-02 15:04:05"))
	case handled:
		say("No row is in the ledger: it was forwarded, and the row deleted.")
	case f.Staging != nil && len(f.Staging.Found) > 0:
		say("No row is in the ledger, and no transaction is open that could bring one: its transaction rolled back, or another copy of it was forwarded.")
		f.Next = "A verifier drops it."
	default:
		say("No row is in the ledger, and no transaction is open that could bring one: it was forwarded and the row deleted, or its transaction rolled back, or there never was such a message.")
		if f.onWay > 0 {
			f.Next = fmt.Sprintf("If it is still in the queues of the verifiers (%s), a verifier drops it.", count(f.onWay, "message"))
		}
	}
}

// concludeDeadRow is about a dead message without a row in the ledger at hand.
func (f *messageFacts) concludeDeadRow(say func(string, ...any), m *deadMessage) {
	switch {
	case m.Verdict == driver.Committed.String():
		say("No row is in the ledger: it was deleted once the message was safe in the dead queue.")
	case m.Ledger != "" && !strings.EqualFold(m.Ledger, f.Ledger.Identity.String()):
		say("The ledger at hand knows nothing of it: it belongs to ledger %s.", m.Ledger)
		f.Next = "With that ledger's database, dead replay finds out whether it is committed. It stays there until dead replay sends it, or dead discard removes it."
	default:
		say("No row is in the ledger: its transaction rolled back, or it was forwarded before.")
	}
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
	const notAsked = "not asked: %s is not set"
	if l := f.Ledger; l == nil {
		add("ledger", notAsked, "BRIDGE_DATABASE_URL")
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
	if f.Parked != nil {
		switch {
		case f.Parked.Found != nil:
			add("parked", "yes, for %s", targetText(f.Parked.Found.Exchange, f.Parked.Found.RoutingKey))
		case f.Parked.LookedAt < f.Parked.Parked:
			add("parked", "not among the first %d of %d", f.Parked.LookedAt, f.Parked.Parked)
		default:
			add("parked", "no")
		}
	}
	if f.Dead == nil {
		add("queues", notAsked, "BRIDGE_AMQP_URL")
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
	if f.Inbox == nil {
		add("inbox", notAsked, "BRIDGE_INBOX_URL")
	}
	p.table(nil, rows)
	p.space()
	for _, sentence := range f.Meaning {
		p.line("%s", sentence)
	}
	p.write(p.paint(bold, "Next:") + " " + terminal.Plain(f.Next) + "\n")
}

func (f *messageFacts) queueRows(add func(name, format string, args ...any)) {
	notAmong := func(seen, depth int) string {
		if seen < depth {
			return fmt.Sprintf("not among the first %d of %d", seen, depth)
		}
		return fmt.Sprintf("not among the %d there", seen)
	}
	if s := f.Staging; s != nil {
		where := fmt.Sprintf("not among the first %s", count(s.LookedAt, "message"))
		if len(s.Found) > 0 {
			where = "in queue " + strings.Join(s.Found, " and ")
		}
		add("on its way", "%s", where)
	} else {
		add("on its way", "not looked for; %s in the queues of the verifiers", count(f.onWay, "message"))
	}
	if len(f.Dead.Found) == 0 {
		add("dead queue", "%s", notAmong(f.Dead.LookedAt, f.Dead.Depth))
	}
	for _, m := range f.Dead.Found {
		add("dead queue", "%s, verdict %s, for %s, since %s", m.Reason, m.Verdict, m.target(), when(m.DeadAt))
	}
	switch d := f.Dropped; {
	case d == nil:
	case len(d.At) == 0:
		add("audit queue", "%s", notAmong(d.LookedAt, d.Depth))
	default:
		add("audit queue", "dropped at %s", when(&d.At[0]))
	}
}

// holderText is a session in one line.
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
		parts = append(parts, "last statement: "+cut(mend.Line(h.Statement), 100))
	}
	return strings.Join(parts, ", ")
}
