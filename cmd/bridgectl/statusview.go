package main

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
)

// write keeps to 80 columns, so that top can show it on every terminal.
func (f *statusFacts) write(p *page) {
	if f.Queues != nil {
		rows := make([][]string, len(f.Queues))
		for i, q := range f.Queues {
			rows[i] = []string{ends(q.Name, 27), humanize.Comma(int64(q.Ready)), signed(q.Change), whole(q.Held),
				strconv.Itoa(q.Consumers), perSecond(q.In), perSecond(q.Out)}
		}
		p.table([]string{"QUEUE", "READY", "+/s", "HELD", "CONSUMERS", "IN/s", "OUT/s"}, rows)
	}
	if l := f.Ledger; l != nil {
		f.gap(p, f.Queues != nil)
		p.table([]string{"LEDGER", "ROWS", "PARKED", "ORPHANS", "OPEN"}, [][]string{{
			l.Identity.String(), upTo(l.Rows, ledgerRowsMost), upTo(l.Parked, parkedCount), upTo(l.Orphans, orphansMost), f.openText(),
		}})
		if len(l.Open) > 0 {
			p.space()
			rows := make([][]string, len(l.Open))
			for i, h := range l.Open {
				rows[i] = []string{since(&h.Since), cut(h.Session, 12), cut(h.Login, 14), cut(h.Program, 16), cut(h.Host, 15), cut(h.State, 20)}
			}
			p.table([]string{"OPEN FOR", "SESSION", "LOGIN", "PROGRAM", "HOST", "STATE"}, rows)
		}
	}
	if len(f.Workers) > 0 {
		f.gap(p, f.Queues != nil || f.Ledger != nil)
		rows := make([][]string, len(f.Workers))
		for i, w := range f.Workers {
			rows[i] = []string{cut(workerName(w.Address), 22), w.state(), total(w.Forwarded, w.ForwardedRate), total(w.Dropped, w.DroppedRate),
				total(w.DeadLettered, w.DeadLetteredRate), number(w.Held), number(w.Waiting), number(w.KeysHeld)}
		}
		p.table([]string{"WORKER", "STATE", "FORWARDED", "DROPPED", "DEAD", "HELD", "WAITING", "KEYS"}, rows)
	}
	for i, failure := range f.Failures {
		f.gap(p, i == 0)
		p.line("%s", "failed: "+failure)
	}
}

func (f *statusFacts) gap(p *page, wanted bool) {
	if wanted {
		p.space()
	}
}

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

func (w workerStatus) state() string {
	switch {
	case w.Error != "":
		return "away"
	case w.Running == nil:
		return "-"
	case *w.Running:
		return "judging"
	}
	return "no session"
}

// upTo is a count that was bounded.
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

func number(n *float64) string {
	if n == nil {
		return "-"
	}
	return humanize.Comma(int64(*n))
}

// perSecond is a rate; one digit behind the point where it is small.
func perSecond(r *float64) string {
	switch {
	case r == nil:
		return "-"
	case math.Abs(*r) < 10 && *r != 0:
		return strconv.FormatFloat(*r, 'f', 1, 64)
	}
	return humanize.Comma(int64(math.Round(*r)))
}

func signed(r *float64) string {
	if r != nil && *r > 0 {
		return "+" + perSecond(r)
	}
	return perSecond(r)
}

// total is a counter, or its rate where there is one.
func total(n, perSec *float64) string {
	if perSec != nil {
		return perSecond(perSec) + "/s"
	}
	return number(n)
}

// headline is the first line of top.
func (f *statusFacts) headline(queue string, every time.Duration) string {
	return fmt.Sprintf("bridgectl top: %s  %s  every %s, ends with Ctrl-C", cut(queue, 20), f.At.Format("15:04:05 UTC"), every)
}
