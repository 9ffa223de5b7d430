package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

// report writes the verdict as a table.
func report(out io.Writer, v *verdict) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(what, format string, values ...any) {
		fmt.Fprintf(table, "%s\t"+format+"\n", append([]any{what}, values...)...)
	}
	fmt.Fprintln(out)
	row("committed = received", "%s %s %s", number(v.committed), equals(v.committed, v.received), number(v.received))
	row("rolled back = dropped", "%s %s %s", number(v.rolledBack), equals(v.rolledBack, v.dropped), number(v.dropped))
	row("  by the death of the process", "%s", number(v.killed))
	row("processes killed", "%s", number(v.kills))
	row("duplicates met and absorbed", "%s", number(v.duplicates))
	row("e-mails in doubt, then resolved", "%s", number(v.doubtful))
	row("  the mail server had, had not", "%s, %s", number(v.doubtfulThere), number(v.doubtful-v.doubtfulThere))
	row("slowest open transaction", "%.1f s", v.slowest.Seconds())
	row("commit to target, p50 and p99", "%s", percentiles(v.latency))
	row("  away from outages (2 s)", "%s", percentiles(v.calm))
	row("lost, invented, sent twice", "%s, %s, %s", number(v.lost), number(v.invented), number(v.twice))
	if v.pending > 0 {
		row("still pending at the gateways", "%s", number(v.pending))
	}
	if v.left+v.dead > 0 {
		row("left in the queues, dead", "%s, %s", number(v.left), number(v.dead))
	}
	if v.carried > 0 {
		row("left in rows of the ledger", "%s", number(v.carried))
	}
	_ = table.Flush()
	fmt.Fprintln(out)
	if v.ok() {
		fmt.Fprintf(out, "%s orders committed, %s e-mails received, none twice and no other.\n", number(v.committed), number(v.received))
		if v.doubtful > 0 {
			fmt.Fprintf(out, "%s were in doubt after a kill or a freeze; the mail server's log resolved them.\n", number(v.doubtful))
		}
	} else {
		fmt.Fprintln(out, "FAILED: see the rows above.")
	}
}

func number(n int) string { return humanize.Comma(int64(n)) }

func equals(a, b int) string {
	if a == b {
		return "="
	}
	return "≠"
}

func percentiles(sorted []time.Duration) string {
	milliseconds := func(percent int) float64 { return percentile(sorted, percent).Seconds() * 1000 }
	return fmt.Sprintf("%.1f ms and %.1f ms (%s orders)", milliseconds(50), milliseconds(99), number(len(sorted)))
}
