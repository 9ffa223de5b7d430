package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twoqueue/twoqueue/compose/reconcile"
)

// records is the evidence for the verdict, from the databases, the queues and the mail server's log.
type records struct {
	attempts map[string]span // every message that a shop has tried, with its transaction's time
	orders   map[string]bool // the messages of committed transactions
	doubts   map[string]bool // the doubtful e-mails: whether the mail server had the e-mail
	arrivals []receipt       // copies that arrived at the target
	emails   []receipt       // e-mails that the mail server accepted
	outages  []span          // of the verifier
	kills    int             // of processes, all parts
	pending  int             // messages that the gateways' inbox is not done with
	left     int             // messages in the queues of the bridge and of the gateways
	carried  int             // messages in rows of the ledger
	dead     int             // messages in their dead queues
}

// span is a time from began to ended, in microseconds. Zero means unknown.
type span struct{ began, ended int64 }

// readRecords reads the databases' part of the records, once all processes have ended.
func readRecords(ctx context.Context, dbs *databases) (r records, err error) {
	var attempts []struct {
		MessageID    string `db:"message_id"`
		Began, Ended int64
	}
	err = dbs.diary.SelectContext(ctx, &attempts, `SELECT a.message_id, coalesce(t.began, 0) AS began, coalesce(t.ended, 0) AS ended
FROM attempts a JOIN transactions t ON t.worker = a.worker AND t.number = a.number`)
	if err != nil {
		return r, fmt.Errorf("read attempts: %w", err)
	}
	r.attempts = make(map[string]span)
	for _, a := range attempts {
		r.attempts[a.MessageID] = span{a.Began, a.Ended}
	}
	var deaths []struct {
		Part       string
		Died, Back int64
	}
	if err := dbs.diary.SelectContext(ctx, &deaths, `SELECT part, died, back FROM deaths`); err != nil {
		return r, fmt.Errorf("read deaths: %w", err)
	}
	r.kills = len(deaths)
	for _, d := range deaths {
		if d.Part == verifierPart {
			r.outages = append(r.outages, span{d.Died, d.Back})
		}
	}
	var ids []string
	if err := dbs.shop.SelectContext(ctx, &ids, `SELECT message_id FROM orders`); err != nil {
		return r, fmt.Errorf("read orders: %w", err)
	}
	r.orders = make(map[string]bool)
	for _, id := range ids {
		r.orders[id] = true
	}
	return r, nil
}

// A verdict is the result of the demo.
type verdict struct {
	committed, received int
	rolledBack, dropped int
	killed              int // of rolledBack, by the death of the process
	kills               int
	duplicates          int // copies at the target beyond each message's first
	doubtful            int // e-mails that the operator resolved
	doubtfulThere       int // of doubtful, e-mails that the mail server had

	lost, invented, twice int // e-mails, by the mail server's log
	pending, left, dead   int
	carried               int // in rows of the ledger

	slowest time.Duration   // the longest time that a transaction was open
	latency []time.Duration // from commit to arrival, sorted
	calm    []time.Duration // of latency, the messages that no outage delayed
}

// recovery is how long, in microseconds, an outage's backlog may delay later messages.
const recovery = 2_000_000

// ok reports whether each committed order's e-mail was received once, no other was, and nothing is
// left in a queue, a row or an inbox.
func (v *verdict) ok() bool {
	return v.lost+v.invented+v.twice+v.pending+v.left+v.carried+v.dead == 0
}

func judge(r records) *verdict {
	v := &verdict{committed: len(r.orders), kills: r.kills, doubtful: len(r.doubts), pending: r.pending, left: r.left, carried: r.carried, dead: r.dead}
	for _, there := range r.doubts {
		if there {
			v.doubtfulThere++
		}
	}
	first := make(map[string]int64)
	for _, a := range r.arrivals {
		if _, again := first[a.MessageID]; again {
			v.duplicates++
		} else {
			first[a.MessageID] = a.At
		}
	}
	received := make(map[string]int)
	for _, e := range r.emails {
		received[e.MessageID]++
	}
	emails := reconcile.Compare(r.orders, received)
	v.lost, v.invented, v.twice = len(emails.Lost), len(emails.Invented), len(emails.Repeated)
	v.received = v.committed - v.lost
	for id, open := range r.attempts {
		v.slowest = max(v.slowest, microseconds(open.ended-open.began))
		if !r.orders[id] {
			v.rolledBack++
			if open.ended == 0 {
				v.killed++
			}
			if received[id] == 0 {
				v.dropped++
			}
			continue
		}
		at, arrived := first[id]
		if open.ended == 0 || !arrived {
			continue // the process died before it noted the time of the commit
		}
		// It may arrive before the shop has the answer to its COMMIT.
		took := max(0, microseconds(at-open.ended))
		v.latency = append(v.latency, took)
		if !slices.ContainsFunc(r.outages, func(o span) bool { return o.began <= at && open.ended <= o.ended+recovery }) {
			v.calm = append(v.calm, took)
		}
	}
	slices.Sort(v.latency)
	slices.Sort(v.calm)
	return v
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// percentile of sorted values.
func percentile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)-1)*percent/100]
}
