package main

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A panel is one metric of one scenario.
type panel struct {
	scenario, metric string
	title, unit, x   string
	drop             string // a suffix of the case names; x mentions it, so drop removes it
	more             bool   // more is better
	log              bool
}

var panels = []panel{
	{scenario: "live", metric: "delivered/s", title: "Delivered at full load", unit: "messages per second", x: "concurrent transactions, 512 B each", drop: " at once", more: true},
	{scenario: "live", metric: "commit to target p50 ms", title: "From COMMIT to the target at full load", unit: "median ms", x: "concurrent transactions, 512 B each", drop: " at once", log: true},
	{scenario: "transaction", metric: "transaction p50 ms", title: "The sender's transaction, one at a time", unit: "median ms", x: "messages in the transaction × size", log: true},
	{scenario: "bill", metric: "WAL bytes", title: "PostgreSQL's log (WAL) per message", unit: "bytes", x: "message size", log: true},
}

const (
	pictureName = "results.svg"
	pictureAlt  = "Four panels: delivered per second, time from COMMIT to the target, the sender's transaction and WAL per message, the bridge beside a polled outbox and publishing after the commit"
	pictureLine = "![" + pictureAlt + "](" + pictureName + ")\n\n"
)

// style has colours for a light page and a dark one. Only this project has a strong colour.
const style = `<style>
svg { --paper: #ffffff; --ink: #1f2328; --faint: #59636e; --grid: #e4e8ec; --ours: #cf4a00; --others: #8c959f }
@media (prefers-color-scheme: dark) { svg { --paper: #0d1117; --ink: #f0f6fc; --faint: #9aa4ae; --grid: #262c34; --ours: #ff8b3d; --others: #717a85 } }
text { fill: var(--faint) } path { stroke: var(--grid) } polyline { fill: none }
.paper { fill: var(--paper) }
.title { fill: var(--ink); font-size: 14px; font-weight: 600 }
.small { font-size: 11px } .middle { text-anchor: middle } .end { text-anchor: end }
.name { stroke: var(--paper); stroke-width: 3; paint-order: stroke }
.ours text { fill: var(--ours); font-weight: 700 }
.others polyline { stroke: var(--others); stroke-width: 1.75 } .others circle { fill: var(--others) } .others path { stroke: var(--others) }
.ours polyline { stroke: var(--ours); stroke-width: 3 } .ours circle { fill: var(--ours) } .ours path { stroke: var(--ours) }
</style>
`

// drawPicture writes the picture of results into a folder, if there is anything to draw.
func drawPicture(folder string, r results) (drawn bool, err error) {
	some := slices.DeleteFunc(slices.Clone(panels), func(p panel) bool { return len(p.series(r)) == 0 })
	if len(some) == 0 {
		return false, nil
	}
	return true, os.WriteFile(filepath.Join(folder, pictureName), []byte(picture(some, r)), 0o644)
}

// Lengths are in pixels. A page on GitHub is as wide as two panels.
const (
	panelWidth, panelHeight = 415, 278
	plotLeft, plotRight     = 50, panelWidth - 134 // names are drawn to the right of it
	plotTop, plotBottom     = 54, panelHeight - 20
	lineHeight              = 14
)

// picture draws panels, and below them the description of the machine.
func picture(panels []panel, r results) string {
	var s strings.Builder
	notes := append(wrap(r.machine, 125), "Points are medians. Thin lines go from the lowest to the highest round, where there was more than one.")
	columns := min(2, len(panels))
	width, height := columns*panelWidth, (len(panels)+columns-1)/columns*panelHeight+len(notes)*lineHeight+16
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif" font-size="12">`+"\n",
		width, height)
	fmt.Fprintf(&s, "<title>%s</title>\n%s<rect width=\"100%%\" height=\"100%%\" class=\"paper\"/>\n", html.EscapeString(pictureAlt), style)
	for i, one := range panels {
		fmt.Fprintf(&s, "<g transform=\"translate(%d %d)\">\n", i%columns*panelWidth, i/columns*panelHeight)
		one.draw(&s, r)
		s.WriteString("</g>\n")
	}
	for i, note := range notes {
		text(&s, 12, float64(height-(len(notes)-i)*lineHeight), "small", note)
	}
	s.WriteString("</svg>\n")
	return s.String()
}

// A series has one contender's results, by the number of the case.
type series struct {
	contender string
	points    map[int]result
}

func (s series) last() int {
	last := -1
	for at := range s.points {
		last = max(last, at)
	}
	return last
}

func (p panel) cases(r results) []string {
	var cases []string
	for _, one := range r.values {
		if one.scenario == p.scenario && one.metric == p.metric && !slices.Contains(cases, one.what) {
			cases = append(cases, one.what)
		}
	}
	return cases
}

// series returns the contenders' series. If there are several cases, it leaves out contenders with
// only one point.
func (p panel) series(r results) []series {
	cases := p.cases(r)
	var all []series
	for _, one := range r.values {
		if one.scenario != p.scenario || one.metric != p.metric || p.log && one.low <= 0 {
			continue
		}
		i := slices.IndexFunc(all, func(s series) bool { return s.contender == one.contender })
		if i < 0 {
			i, all = len(all), append(all, series{one.contender, map[int]result{}})
		}
		all[i].points[slices.Index(cases, one.what)] = one
	}
	return slices.DeleteFunc(all, func(s series) bool { return len(s.points) == 1 && len(cases) > 1 })
}

// draw draws the axes, then the other contenders' lines, then this project's lines above them.
func (p panel) draw(s *strings.Builder, r results) {
	all, cases := p.series(r), p.cases(r)
	text(s, 12, 22, "title", p.title)
	text(s, 12, 39, "", p.unit+pick(p.log, ", logarithmic", "")+pick(p.more, "; more is better", "; less is better"))
	text(s, (plotLeft+plotRight)/2, plotBottom+2, "middle", p.x)

	var ticks [][]string
	deepest := 0
	for _, what := range cases {
		lines := wrap(units.Replace(strings.TrimSuffix(what, p.drop)), 8)
		ticks, deepest = append(ticks, lines), max(deepest, len(lines))
	}
	bottom := float64(plotBottom - (deepest+1)*lineHeight)
	x := func(at int) float64 {
		return plotLeft + 18 + float64(plotRight-plotLeft-30)*float64(at)/float64(max(1, len(cases)-1))
	}
	y := p.scale(s, all, bottom)
	for at, lines := range ticks {
		for i, line := range lines {
			text(s, x(at), bottom+float64(16+i*lineHeight), "small middle", line)
		}
	}

	names := make([]*name, len(all))
	for i, one := range all {
		names[i] = &name{lines: label(one.contender), x: x(one.last()) + 9, y: y(one.points[one.last()].middle)}
	}
	apart(slices.Clone(names), plotTop, bottom)
	for _, ours := range []bool{false, true} { // this project's lines above all others
		for i, one := range all {
			if one.ours() == ours {
				fmt.Fprintf(s, "<g class=%q>\n", pick(ours, "ours", "others"))
				one.draw(s, len(cases), x, y)
				names[i].write(s)
				s.WriteString("</g>\n")
			}
		}
	}
}

func (s series) draw(text *strings.Builder, cases int, x func(int) float64, y func(float64) float64) {
	var line []string
	for at := range cases {
		point, ok := s.points[at]
		if !ok {
			continue
		}
		line = append(line, fmt.Sprintf("%.1f,%.1f", x(at), y(point.middle)))
		fmt.Fprintf(text, "<path d=\"M%.1f %.1fV%.1f\" stroke-opacity=\".6\"/>\n", x(at), y(point.low), y(point.high))
		fmt.Fprintf(text, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"/>\n", x(at), y(point.middle), pick(s.ours(), 4, 3))
	}
	fmt.Fprintf(text, "<polyline points=\"%s\" stroke-dasharray=\"%s\"/>\n", strings.Join(line, " "), s.dashes())
}

func (s series) ours() bool { return strings.HasPrefix(s.contender, ledger.name) }

// dashes returns a pattern that distinguishes the other contenders where their lines cross.
func (s series) dashes() string {
	at := slices.IndexFunc(contenders, func(c *contender) bool { return c.name == s.contender })
	return pick(s.ours(), "none", []string{"none", "5 3", "1.5 3"}[max(0, at)%3])
}

// scale draws the grid lines with their values, and returns the function that maps a value to its y
// coordinate.
func (p panel) scale(s *strings.Builder, all []series, bottom float64) func(float64) float64 {
	lowest, highest := math.Inf(1), 0.0
	for _, one := range all {
		for _, point := range one.points {
			lowest, highest = min(lowest, point.low), max(highest, point.high)
		}
	}
	var ticks []float64
	var share func(float64) float64 // of the panel's height
	if p.log {
		lowest, highest = lowest/1.3, highest*1.3
		few := highest/lowest < 1000
		for tick := math.Pow(10, math.Floor(math.Log10(lowest))); tick <= highest; tick *= 10 {
			ticks = append(ticks, tick)
			if few {
				ticks = append(ticks, 3*tick)
			}
		}
		ticks = slices.DeleteFunc(ticks, func(tick float64) bool { return tick < lowest || tick > highest })
		share = func(v float64) float64 { return math.Log(v/lowest) / math.Log(highest/lowest) }
	} else {
		highest = max(highest*1.05, 1)
		step := math.Pow(10, math.Floor(math.Log10(highest)))
		for _, part := range []float64{0.2, 0.5, 1, 2} { // three to six lines
			if highest/(step*part) <= 6 {
				step *= part
				break
			}
		}
		for tick := 0.0; tick <= highest; tick += step {
			ticks = append(ticks, tick)
		}
		share = func(v float64) float64 { return v / highest }
	}
	y := func(v float64) float64 { return bottom - (bottom-plotTop)*share(v) }
	for _, tick := range ticks {
		fmt.Fprintf(s, "<path d=\"M%d %.1fH%d\"/>\n", plotLeft, y(tick), plotRight)
		text(s, plotLeft-6, y(tick)+4, "small end", thousands(tick))
	}
	return y
}

// thousands writes a value with commas.
func thousands(v float64) string {
	digits := strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64)
	for i := len(digits) - 3; i > 0 && v >= 1000; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// A name is a contender's label, to the right of its last point.
type name struct {
	lines []string
	x, y  float64 // of the first line
}

func (n *name) write(s *strings.Builder) {
	for i, line := range n.lines {
		text(s, n.x, n.y+float64(i*lineHeight)+4, "name", line)
	}
}

func (n *name) height() float64 { return float64(len(n.lines)*lineHeight + 4) }

// apart moves names that overlap, as little as possible, and keeps them between top and bottom.
func apart(names []*name, top, bottom float64) {
	for _, one := range names {
		one.y -= float64(len(one.lines)-1) * lineHeight / 2
	}
	slices.SortStableFunc(names, func(a, b *name) int { return cmp.Compare(a.y, b.y) })
	for range 100 { // each round moves overlapping names apart by half of the overlap
		for i, one := range names {
			one.y = min(max(one.y, top), bottom-one.height()+lineHeight)
			if i == 0 {
				continue
			}
			if over := names[i-1].y + names[i-1].height() - one.y; over > 0 {
				names[i-1].y -= over / 2
				one.y += over / 2
			}
		}
	}
}

// label returns the lines of a contender's name in pictures.
func label(contender string) []string {
	if c, err := findContender(contender); err == nil && c.label != "" {
		return strings.Split(c.label, "\n")
	}
	return wrap(contender, 20)
}

func text(s *strings.Builder, x, y float64, class, content string) {
	fmt.Fprintf(s, "<text x=\"%.1f\" y=\"%.1f\" class=%q>%s</text>\n", x, y, class, html.EscapeString(content))
}

// units keeps a number and its unit on one line.
var units = strings.NewReplacer(" B", "\u00a0B", " KiB", "\u00a0KiB")

// wrap breaks a text at spaces into lines of at most width characters.
func wrap(content string, width int) []string {
	var lines []string
	for word := range strings.SplitSeq(content, " ") {
		if last := len(lines) - 1; last >= 0 && len([]rune(lines[last]))+1+len([]rune(word)) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
