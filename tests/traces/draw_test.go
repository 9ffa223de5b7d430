package traces

import (
	"bytes"
	"flag"
	"fmt"
	"slices"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// The picture in the documentation is drawn by
//
//	go test ./tests/traces -count=1 -draw "$PWD/sender/otelsender/trace.svg"
var drawing = flag.String("draw", "", "the file that gets a picture of the trace")

// Sizes in the picture.
const (
	rowHeight, barHeight = 24, 12
	left, width, right   = 210, 560, 80
	top                  = 34
)

// draw draws spans as bars on a time axis, each below its parent.
func draw(spans []sdk.ReadOnlySpan) []byte {
	slices.SortStableFunc(spans, func(a, b sdk.ReadOnlySpan) int { return a.StartTime().Compare(b.StartTime()) })
	first, last := spans[0].StartTime(), spans[0].EndTime()
	for _, span := range spans {
		if span.EndTime().After(last) {
			last = span.EndTime()
		}
	}
	x := func(at time.Time) float64 { return left + width*float64(at.Sub(first))/float64(last.Sub(first)) }
	milliseconds := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="13">
<title>One trace: the shop's request, sender, verifier, receiver, and the receiver's own message</title>
<style>text { fill: #24292f } .row { stroke: #d0d7de } .sender { fill: #2563a8 } .verifier { fill: #8250df } .receiver { fill: #1a7f37 } .shop { fill: #57606a }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .row { stroke: #30363d } }</style>
`, left+width+right, top+rowHeight*len(spans)+6)
	for i, part := range []string{"shop", "sender", "verifier", "receiver"} {
		fmt.Fprintf(&out, `<rect class="%s" x="%d" y="8" width="12" height="12" rx="2"/><text x="%d" y="19">%s</text>
`, part, left+i*100, left+i*100+18, part)
	}
	row := 0
	var below func(parent trace.SpanID, depth int)
	below = func(parent trace.SpanID, depth int) {
		for _, span := range spans {
			if span.Parent().SpanID() != parent {
				continue
			}
			y := top + rowHeight*row
			row++
			from, until := x(span.StartTime()), x(span.EndTime())
			fmt.Fprintf(&out, `<line class="row" x1="0" x2="%d" y1="%d" y2="%d"/><text x="%d" y="%d">%s</text><rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d" rx="2"/><text x="%.1f" y="%d">%s</text>
`, left+width+right, y, y, 6+14*depth, y+17, span.Name(), part(span), from, y+6, max(until-from, 2), barHeight, until+6, y+17, milliseconds(span.EndTime().Sub(span.StartTime())))
			below(span.SpanContext().SpanID(), depth+1)
		}
	}
	below(trace.SpanID{}, 0)
	out.WriteString("</svg>\n")
	return out.Bytes()
}

// part returns the part of the system that made a span.
func part(span sdk.ReadOnlySpan) string {
	switch span.InstrumentationScope().Name {
	case "github.com/twoqueue/twoqueue/sender":
		return "sender"
	case "github.com/twoqueue/twoqueue/verifier":
		return "verifier"
	case "github.com/twoqueue/twoqueue/idempotency":
		return "receiver"
	}
	return "shop"
}
