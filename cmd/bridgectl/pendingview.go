package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/twoqueue/twoqueue/bridge/driver"
	"github.com/twoqueue/twoqueue/bridge/wire"
)

// A pendingMessage is one line of pending list.
type pendingMessage struct {
	Consumer string    `json:"consumer"`
	Key      string    `json:"key"`
	State    string    `json:"state"`
	Attempts int       `json:"attempts"`
	Since    time.Time `json:"since"`  // the time of its claim, by the database's clock
	Stored   bool      `json:"stored"` // if not, the message is still in its queue
	Error    string    `json:"error"`
}

func newPendingMessage(consumer string, p driver.Pending) pendingMessage {
	return pendingMessage{consumer, p.Key, string(p.State), p.Attempts, p.Since.UTC(), p.Stored, p.Error}
}

func (m pendingMessage) why() string {
	if m.Stored {
		return m.Error
	}
	return strings.TrimPrefix(m.Error+"; the message is still in its queue", "; ")
}

// A pendingCount is the number of messages of a consumer in a state.
type pendingCount struct {
	Consumer string `json:"consumer"`
	State    string `json:"state"`
	Messages int64  `json:"messages"`
}

// pendingList is the answer of pending list.
type pendingList struct {
	Messages []pendingMessage `json:"messages"`
	Limited  bool             `json:"limited"` // there may be more
	Counts   []pendingCount   `json:"counts"`  // of all states
}

func (l *pendingList) write(p *page) {
	p.list([]string{"CONSUMER", "KEY", "STATE", "ATTEMPTS", "FOR", "WHY"}, rowsOf(l.Messages, func(m pendingMessage) []string {
		return []string{m.Consumer, m.Key, m.State, fmt.Sprint(m.Attempts), since(&m.Since), cut(m.why(), 70)}
	}))
	p.line("%s listed%s", count(len(l.Messages), "message"), moreText(l.Limited))
	for _, c := range l.Counts {
		p.line("%s: %d %s", c.Consumer, c.Messages, c.State)
	}
}

// pendingDetails is the answer of pending show.
type pendingDetails []pendingDetail

// A pendingDetail is a pending message with its properties, headers and body.
type pendingDetail struct {
	pendingMessage
	Size       int            `json:"size"` // of the body
	Properties map[string]any `json:"properties,omitempty"`
	Headers    map[string]any `json:"headers,omitempty"`
	Body       string         `json:"body"`                 // begins with "base64:" if it is not text; cut to CutAt bytes, if that is set
	CutAt      int            `json:"cut_at,omitempty"`     // bytes
	Unreadable string         `json:"unreadable,omitempty"` // why the stored message cannot be read
}

func newPendingDetail(consumer string, p driver.Pending, most int) pendingDetail {
	out := pendingDetail{pendingMessage: newPendingMessage(consumer, p)}
	if len(p.Message) == 0 {
		return out
	}
	d, err := wire.ReadDelivery(p.Message)
	if err != nil {
		out.Unreadable = err.Error()
		return out
	}
	out.Size, out.Properties, out.Headers = len(d.Body), propertiesOf(d), jsonTable(d.Headers)
	out.Body, out.CutAt = cutBody(d.Body, most)
	return out
}

func (all pendingDetails) write(p *page) { writeAll(p, all) }

func (m pendingDetail) write(p *page) {
	p.title("message " + m.Key)
	rows := [][]string{
		{"consumer", m.Consumer},
		{"state", m.State},
		{"attempts", fmt.Sprint(m.Attempts)},
		{"claimed", when(&m.Since)},
		{"why", m.why()},
	}
	if m.Unreadable != "" {
		rows = append(rows, []string{"unreadable", m.Unreadable})
	}
	p.table(nil, append(rows, contentRows(m.Properties, m.Headers)...))
	if m.Stored && m.Unreadable == "" {
		writeBody(p, m.Body, m.Size, m.CutAt)
	}
}

// A pendingOutcome is the result of a decision about one message.
type pendingOutcome struct {
	Consumer string `json:"consumer"`
	Key      string `json:"key"`
	State    string `json:"state"` // afterwards
	Done     bool   `json:"done"`
	Why      string `json:"why,omitempty"` // why not
}

// pendingReport is the answer of pending retry and pending done.
type pendingReport struct {
	Action   string           `json:"action"`
	DryRun   bool             `json:"dry_run"`
	Limited  bool             `json:"limited"`  // of --all: there may be more
	Did      int              `json:"done"`     // with DryRun: messages that would be done
	Not      int              `json:"not_done"` // unchanged messages
	Messages []pendingOutcome `json:"messages"`

	did, note string
}

func (r *pendingReport) add(o pendingOutcome) {
	if o.Why != "" {
		r.Not++
	} else {
		r.Did++
	}
	r.Messages = append(r.Messages, o)
}

func (r *pendingReport) write(p *page) {
	would := ""
	if r.DryRun {
		would = "would be "
	}
	p.list([]string{"CONSUMER", "KEY", "OUTCOME"}, rowsOf(r.Messages, func(o pendingOutcome) []string {
		outcome := would + r.did + "; " + r.note
		switch {
		case o.Why != "":
			outcome = "no: " + o.Why
		case r.DryRun:
			outcome = would + r.did + " (is " + o.State + ")"
		}
		return []string{o.Consumer, o.Key, outcome}
	}))
	p.line("%s %s%s, %d not%s", count(r.Did, "message"), would, r.did, r.Not, moreText(r.Limited))
}

// print prints the report, also if err ended the command early.
func (r *pendingReport) print(a *app, err error) error {
	if err != nil && len(r.Messages) == 0 {
		return err
	}
	if printErr := a.print(r); err == nil {
		err = printErr
	}
	if err == nil && !r.DryRun && r.Not > 0 {
		err = fmt.Errorf("%d of %d messages not %s", r.Not, len(r.Messages), r.did)
	}
	return err
}

func sinceClaim(p *driver.Pending) time.Duration { return time.Since(p.Since) }

// writeBody writes a body of size bytes. If cutAt is not 0, body is only its first cutAt bytes.
func writeBody(p *page, body string, size, cutAt int) {
	p.line("body, %s:", humanize.Bytes(uint64(size)))
	for line := range strings.Lines(body) {
		p.line("  %s", line)
	}
	if cutAt > 0 {
		p.line("  (the first %d bytes; more with --body)", cutAt)
	}
}
