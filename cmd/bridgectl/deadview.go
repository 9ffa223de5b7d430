package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// deadList is the answer of dead list.
type deadList struct {
	LookedAt int            `json:"looked_at"`
	Depth    int            `json:"depth"` // of the queue: ready messages at the beginning
	Messages []*deadMessage `json:"messages"`

	queue string
}

func (l *deadList) write(p *page) {
	p.list([]string{"ID", "REASON", "VERDICT", "TARGET", "DEAD FOR", "SIZE", "WHY"}, rowsOf(l.Messages, func(m *deadMessage) []string {
		return []string{m.ID, m.Reason, m.Verdict, m.target(), since(m.DeadAt), humanize.Bytes(uint64(m.Size)), cut(m.Text, 70)}
	}))
	p.line("%s", shownText(len(l.Messages), l.LookedAt, l.Depth, l.queue))
}

func shownText(shown, seen, depth int, queue string) string {
	text := fmt.Sprintf("%s of %d in queue %s", count(shown, "message"), depth, queue)
	if seen < depth {
		text += fmt.Sprintf("; only the first %d were read (--limit)", seen)
	}
	return text
}

// deadDetails is the answer of dead show.
type deadDetails []*deadDetail

// A deadDetail is a dead message with its properties, headers and body.
type deadDetail struct {
	*deadMessage
	Properties map[string]any `json:"properties"`
	Headers    map[string]any `json:"headers"` // as they are in the dead queue
	Body       string         `json:"body"`    // begins with "base64:" if it is not text; cut to CutAt bytes, if that is set
	CutAt      int            `json:"cut_at,omitempty"`
	Replay     string         `json:"replay"` // the effect that dead replay would have
}

func detail(m *deadMessage, most int) *deadDetail {
	d := m.delivery
	out := &deadDetail{deadMessage: m, Headers: jsonTable(d.Headers)}
	if len(m.members) == 1 { // the priority travels as a header
		d.Priority = m.members[0].Message.Publishing.Priority
	}
	out.Properties = propertiesOf(d)
	out.Body, out.CutAt = cutBody(d.Body, most)
	out.Replay = replayWords(m)
	return out
}

// propertiesOf returns the AMQP properties that are set.
func propertiesOf(d amqp.Delivery) map[string]any {
	set := make(map[string]any)
	for name, value := range map[string]string{
		"content_type": d.ContentType, "content_encoding": d.ContentEncoding, "correlation_id": d.CorrelationId,
		"reply_to": d.ReplyTo, "message_id": d.MessageId, "type": d.Type, "user_id": d.UserId, "app_id": d.AppId,
		"expiration": d.Expiration,
	} {
		if value != "" {
			set[name] = value
		}
	}
	if d.Priority != 0 {
		set["priority"] = d.Priority
	}
	if !d.Timestamp.IsZero() {
		set["timestamp"] = d.Timestamp.UTC().Format(time.RFC3339)
	}
	return set
}

// contentRows returns properties and headers as rows of a table, without the bridge's headers.
func contentRows(properties, headers map[string]any) (rows [][]string) {
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		rows = append(rows, []string{strings.ReplaceAll(name, "_", " "), fmt.Sprint(properties[name])})
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if !strings.HasPrefix(name, "x-bridge-") {
			rows = append(rows, []string{"header " + name, fmt.Sprint(headers[name])})
		}
	}
	return rows
}

// replayWords describes the effect of a replay, as far as it follows from the message alone.
func replayWords(m *deadMessage) string {
	switch {
	case m.receiver != "":
		return "to queue " + m.receiver + ", with the same ID; its attempts start again at 1"
	case m.wrong != nil:
		return "not possible: " + m.wrong.Error()
	case m.Verdict != driver.Committed.String():
		return "to its target if its row is in the ledger, else only with --force: the outcome of its transaction is unknown"
	case m.Reason == wire.DeadNotAllowed:
		return "to its target, but only with --force or if BRIDGE_ALLOW here allows it: the verifiers' allow-list forbids it"
	}
	return "to its target, with the same ID; its row in the ledger has been deleted"
}

func (all deadDetails) write(p *page) { writeAll(p, all) }

func (m *deadDetail) write(p *page) {
	p.title("message " + m.ID)
	rows := [][]string{
		{"reason", strings.TrimSuffix(m.Reason+": "+m.Text, ": ")},
		{"verdict", m.Verdict},
		{"target", m.target()},
		{"dead since", when(m.DeadAt)},
		{"staged at", when(m.StagedAt)},
		{"attempts", fmt.Sprint(m.Attempts)},
		{"ledger", m.Ledger},
		{"replay", m.Replay},
	}
	p.table(nil, append(rows, contentRows(m.Properties, m.Headers)...))
	writeBody(p, m.Body, m.Size, m.CutAt)
}

// A deadOutcome is the result for one message.
type deadOutcome struct {
	ID         string `json:"id"`
	Exchange   string `json:"exchange"`
	RoutingKey string `json:"routing_key"`
	Reason     string `json:"reason"`
	Verdict    string `json:"verdict"`
	Done       bool   `json:"done"`
	Why        string `json:"why,omitempty"` // why not
	Note       string `json:"note,omitempty"`

	target string
}

func outcomeOf(m *deadMessage) deadOutcome {
	return deadOutcome{ID: m.ID, Exchange: m.Exchange, RoutingKey: m.RoutingKey, Reason: m.Reason, Verdict: m.Verdict, target: m.target()}
}

// deadReport is the answer of dead replay and dead discard.
type deadReport struct {
	Action   string        `json:"action"`
	DryRun   bool          `json:"dry_run"`
	LookedAt int           `json:"looked_at"`
	Depth    int           `json:"depth"`
	Did      int           `json:"done"`     // with DryRun: messages that would be done
	Not      int           `json:"not_done"` // messages that stay in the dead queue
	Messages []deadOutcome `json:"messages"`
}

func (r *deadReport) add(o deadOutcome) {
	if o.Why != "" {
		r.Not++
	} else {
		r.Did++
	}
	r.Messages = append(r.Messages, o)
}

func (r *deadReport) write(p *page) {
	done := strings.TrimSuffix(r.Action, "e") + "ed"
	if r.DryRun {
		done = "would be " + done
	}
	p.list([]string{"ID", "TARGET", "REASON", "VERDICT", "OUTCOME"}, rowsOf(r.Messages, func(o deadOutcome) []string {
		outcome := done
		if o.Why != "" {
			outcome = "no: " + o.Why
		} else if o.Note != "" {
			outcome += "; " + o.Note
		}
		return []string{o.ID, o.target, o.Reason, o.Verdict, outcome}
	}))
	p.line("%s %s, %d not; %d of %d in the queue were read", count(r.Did, "message"), done, r.Not, r.LookedAt, r.Depth)
}

// since returns the time since at, or "-" if at is unknown.
func since(at *time.Time) string {
	if at == nil || at.IsZero() {
		return "-"
	}
	return spanText(time.Since(*at))
}

func when(at *time.Time) string {
	if at == nil || at.IsZero() {
		return "-"
	}
	return at.UTC().Format(time.RFC3339) + " (" + since(at) + " ago)"
}

// spanText returns a duration in at most two units.
func spanText(d time.Duration) string {
	const day = 24 * time.Hour
	switch d = max(d, 0); {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
}

// count returns a number with its noun, in the singular or plural.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// cut shortens text to a number of runes.
func cut(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most-1]) + "…"
}

// ends shortens text to a number of runes by a cut near its start, since the names of our queues
// differ at their ends.
func ends(text string, most int) string {
	const head = 10
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:head]) + "…" + string(runes[len(runes)-most+head+1:])
}
