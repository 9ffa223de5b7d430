package main

import (
	"cmp"
	"math"
	"strconv"

	"github.com/dustin/go-humanize"

	"github.com/twoqueue/twoqueue/bridge/inspect"
)

// write keeps its tables within 80 columns.
func (f *statusFacts) write(p *page) {
	f.Failures.write(p)
	if len(f.Failures) > 0 && (f.Queues != nil || f.Ledger != nil) {
		p.space()
	}
	if f.Queues != nil {
		p.table([]string{"QUEUE", "READY", "HELD", "CONSUMERS", "IN/s", "OUT/s"}, rowsOf(f.Queues, func(q queueStatus) []string {
			return []string{ends(q.Name, 27), humanize.Comma(int64(q.Ready)), whole(q.Held), strconv.Itoa(q.Consumers), perSecond(q.In), perSecond(q.Out)}
		}))
	}
	if l := f.Ledger; l != nil {
		if f.Queues != nil {
			p.space()
		}
		p.table([]string{"LEDGER", "ROWS", "CARRIED", "DUE", "ORPHANS", "OPEN"}, [][]string{{
			l.Identity.String(), upTo(l.Rows, ledgerRowsMost), upTo(l.Carried, ledgerRowsMost), upTo(l.Due, dueMost), upTo(l.Orphans, orphansMost), f.openText(),
		}})
		if l.Delayed != nil && (l.Delayed.Next != nil || l.Delayed.Overdue != nil) {
			p.line("%s", l.Delayed.text())
		}
		if l.unseen {
			p.line("OPEN is unknown: the login may not see other sessions; bridgectl doctor names the right")
		}
		if len(l.Open) > 0 {
			p.space()
			p.table([]string{"OPEN FOR", "SESSION", "LOGIN", "PROGRAM", "HOST", "STATE"}, rowsOf(l.Open, func(h inspect.Holder) []string {
				return []string{since(&h.Since), cut(h.Session, 12), told(h.Login, 14), told(h.Program, 16), told(h.Host, 15), told(h.State, 20)}
			}))
		}
	}
}

// told returns a text for a column, or "-" if the login may not see it.
func told(text string, most int) string { return cut(cmp.Or(text, "-"), most) }

func (f *statusFacts) openText() string {
	switch open := f.Ledger.Open; {
	case open == nil:
		return "-"
	case len(open) == holdersMost:
		return strconv.Itoa(holdersMost) + "+"
	default:
		return strconv.Itoa(len(open))
	}
}

// upTo returns a count as text, with a + if it has reached its bound.
func upTo(n *int, most int) string {
	switch {
	case n == nil:
		return "-"
	case *n >= most:
		return humanize.Comma(int64(most)) + "+"
	}
	return humanize.Comma(int64(*n))
}

func whole(n *int64) string {
	if n == nil {
		return "-"
	}
	return humanize.Comma(*n)
}

// perSecond returns a rate as text, with one decimal if it is below 10.
func perSecond(r *float64) string {
	switch {
	case r == nil:
		return "-"
	case *r < 10 && *r != 0:
		return strconv.FormatFloat(*r, 'f', 1, 64)
	}
	return humanize.Comma(int64(math.Round(*r)))
}
