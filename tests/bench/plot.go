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

// A picture is some panels in one file for white and one for dark.
type picture struct {
	name, alt string
	singles   bool // contenders are drawn that were measured at one point only
	panels    []panel
}

// A panel is one metric of one scenario.
type panel struct {
	scenario, metric string
	title, unit, x   string
	only, drop       string // the beginning of its cases' names, and the end, which x says
	more             bool   // is better
	log, categories  bool   // cases that are no steps of one quantity have no line between them
}

var pictures = []picture{
	{"results", "Four panels: delivered per second, time from COMMIT to the target, the sender's transaction and WAL per message, the bridge beside a polled outbox and publishing after the commit", false, []panel{
		{scenario: "live", metric: "delivered/s", title: "Delivered at full load", unit: "messages per second", x: "concurrent transactions, 512 B each", drop: " at once", more: true},
		{scenario: "live", metric: "commit to target p50 ms", title: "From COMMIT to the target at full load", unit: "median ms", x: "concurrent transactions, 512 B each", drop: " at once", log: true},
		{scenario: "transaction", metric: "p50 ms", title: "The sender's transaction, one at a time", unit: "median ms", x: "messages in the transaction × size", log: true},
		{scenario: "bill", metric: "WAL bytes", title: "PostgreSQL's log (WAL) per message", unit: "bytes", x: "message size", log: true},
	}},
	{"results-more", "The same run: tail latencies, processor time, steady rates, backlogs, memory", true, []panel{
		{scenario: "live", metric: "p99 ms", title: "Full load: COMMIT to target, p99", unit: "ms", x: "concurrent transactions", drop: " at once", log: true},
		{scenario: "live", metric: "CPU µs per message", title: "Full load: processor time per message", unit: "µs, all processes", x: "concurrent transactions", drop: " at once", log: true},
		{scenario: "latency", metric: "p50 ms", title: "Steady rate: COMMIT to target, p50", unit: "ms", x: "transactions per second", log: true},
		{scenario: "latency", metric: "p99 ms", title: "Steady rate: COMMIT to target, p99", unit: "ms", x: "transactions per second", log: true},
		{scenario: "contention", metric: "delivered/s", title: "MariaDB at full load: delivered", unit: "messages per second", x: "concurrent transactions", only: "MariaDB, ", drop: " at once", more: true},
		{scenario: "slow", metric: "p99 ms", title: "Beside open transactions: p99 of the others", unit: "ms, COMMIT to target", x: "open transactions", drop: " open", log: true},
		{scenario: "drain", metric: "messages/s", title: "Draining a backlog", unit: "messages per second", more: true, categories: true},
		{scenario: "growth", metric: "messages/s", title: "Backlogs that grow", unit: "messages per second", more: true, categories: true},
		{scenario: "growth", metric: "memory MiB", title: "Backlogs that grow: the verifier's memory", unit: "MiB", categories: true},
	}},
}

// A theme is the colours of a picture: one strong colour for this project.
type theme struct{ name, paper, ink, faint, grid, ours, others string }

var themes = []theme{
	{"light", "#ffffff", "#1f2328", "#59636e", "#e4e8ec", "#cf4a00", "#8c959f"},
	{"dark", "#0d1117", "#f0f6fc", "#9aa4ae", "#262c34", "#ff8b3d", "#717a85"},
}

// markdown shows a picture on a page beside it.
func (p picture) markdown() string {
	return fmt.Sprintf("<picture><source media=\"(prefers-color-scheme: dark)\" srcset=\"%[1]s-dark.svg\"><img alt=\"%[2]s\" src=\"%[1]s-light.svg\"></picture>\n\n",
		p.name, html.EscapeString(p.alt))
}

// drawAll writes the pictures of results into a folder, and returns those for which
// there was anything to draw.
func drawAll(folder string, r results) ([]picture, error) {
	var drawn []picture
	for _, p := range pictures {
		p.panels = slices.DeleteFunc(slices.Clone(p.panels), func(one panel) bool { return len(one.series(r, p.singles)) == 0 })
		if len(p.panels) == 0 {
			continue
		}
		for _, t := range themes {
			if err := os.WriteFile(filepath.Join(folder, p.name+"-"+t.name+".svg"), []byte(p.svg(r, t)), 0o644); err != nil {
				return nil, err
			}
		}
		drawn = append(drawn, p)
	}
	return drawn, nil
}

// Lengths are in pixels. A page on GitHub is as wide as two panels.
const (
	panelWidth, panelHeight = 415, 278
	plotLeft, plotRight     = 50, panelWidth - 134 // names stand right of it
	plotTop, plotBottom     = 54, panelHeight - 20
	lineHeight              = 14
)

// svg draws the panels, and below them where all this was measured.
func (p picture) svg(r results, t theme) string {
	var s strings.Builder
	notes := append(wrap(r.machine, 125), "Points are medians. Thin lines go from the lowest to the highest round, where there was more than one.")
	columns := min(2, len(p.panels))
	width, height := columns*panelWidth, (len(p.panels)+columns-1)/columns*panelHeight+len(notes)*lineHeight+16
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif" font-size="12" fill="%[3]s">`+"\n",
		width, height, t.faint)
	fmt.Fprintf(&s, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" fill=\"%s\"/>\n", html.EscapeString(p.alt), t.paper)
	for i, one := range p.panels {
		fmt.Fprintf(&s, "<g transform=\"translate(%d %d)\">\n", i%columns*panelWidth, i/columns*panelHeight)
		one.draw(&s, r, t, p.singles)
		s.WriteString("</g>\n")
	}
	for i, note := range notes {
		text(&s, 12, float64(height-(len(notes)-i)*lineHeight), note, `font-size="11"`)
	}
	s.WriteString("</svg>\n")
	return s.String()
}

// A series is what one contender reached, by the number of the case.
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
		if one.scenario == p.scenario && one.metric == p.metric && strings.HasPrefix(one.what, p.only) && !slices.Contains(cases, one.what) {
			cases = append(cases, one.what)
		}
	}
	return cases
}

func (p panel) series(r results, singles bool) []series {
	cases := p.cases(r)
	var all []series
	for _, one := range r.values {
		if one.scenario != p.scenario || one.metric != p.metric || !slices.Contains(cases, one.what) || p.log && one.low <= 0 {
			continue
		}
		i := slices.IndexFunc(all, func(s series) bool { return s.contender == one.contender })
		if i < 0 {
			i, all = len(all), append(all, series{one.contender, map[int]result{}})
		}
		all[i].points[slices.Index(cases, one.what)] = one
	}
	return slices.DeleteFunc(all, func(s series) bool { return !singles && len(s.points) == 1 && len(cases) > 1 })
}

// draw draws the axes, then the others' lines, then this project's above them.
func (p panel) draw(s *strings.Builder, r results, t theme, singles bool) {
	all, cases := p.series(r, singles), p.cases(r)
	text(s, 12, 22, p.title, fmt.Sprintf(`font-size="14" font-weight="600" fill="%s"`, t.ink))
	text(s, 12, 39, p.unit+pick(p.log, ", logarithmic", "")+pick(p.more, "; more is better", "; less is better"), "")

	var ticks [][]string
	deepest := 0
	for _, what := range cases {
		lines := wrap(units.Replace(strings.TrimSuffix(strings.TrimPrefix(what, p.only), p.drop)), 8)
		ticks, deepest = append(ticks, lines), max(deepest, len(lines))
	}
	bottom := float64(plotBottom - deepest*lineHeight)
	if p.x != "" {
		text(s, (plotLeft+plotRight)/2, plotBottom+2, p.x, `text-anchor="middle"`)
		bottom -= lineHeight
	}
	x := func(at int) float64 {
		return plotLeft + 18 + float64(plotRight-plotLeft-30)*float64(at)/float64(max(1, len(cases)-1))
	}
	y := p.scale(s, t, all, bottom)
	for at, lines := range ticks {
		for i, line := range lines {
			text(s, x(at), bottom+float64(16+i*lineHeight), line, `text-anchor="middle" font-size="11"`)
		}
	}

	names := make(map[int][]*name) // by the case that they stand beside
	for _, one := range all {
		at := one.last()
		names[at] = append(names[at], &name{lines: label(one.contender), y: y(one.points[at].middle), ours: one.ours()})
	}
	for _, those := range names {
		apart(those, plotTop, bottom)
	}
	for _, ours := range []bool{false, true} { // above all others
		for _, one := range all {
			if one.ours() == ours {
				p.line(s, t, one, len(cases), x, y)
			}
		}
		for at := range cases {
			near := at < len(cases)-1 && at > (len(cases)-1)/2 // to the names at the end
			for _, one := range names[at] {
				if one.ours == ours {
					one.write(s, t, x(at), near)
				}
			}
		}
	}
}

// line draws what a contender reached.
func (p panel) line(s *strings.Builder, t theme, one series, cases int, x func(int) float64, y func(float64) float64) {
	colour, width, radius := t.others, "1.75", "3"
	if one.ours() {
		colour, width, radius = t.ours, "3", "4"
	}
	var line []string
	for at := range cases {
		point, ok := one.points[at]
		if !ok {
			continue
		}
		line = append(line, fmt.Sprintf("%.1f,%.1f", x(at), y(point.middle)))
		fmt.Fprintf(s, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"%s\" stroke-opacity=\".6\"/>\n", x(at), y(point.low), y(point.high), colour)
		fmt.Fprintf(s, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" fill=\"%s\"/>\n", x(at), y(point.middle), radius, colour)
	}
	if !p.categories {
		fmt.Fprintf(s, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"%s\" stroke-dasharray=\"%s\"/>\n",
			strings.Join(line, " "), colour, width, one.dashes())
	}
}

func (s series) ours() bool { return strings.HasPrefix(s.contender, ledger.name) }

// dashes tell the others apart where their lines cross.
func (s series) dashes() string {
	at := slices.IndexFunc(contenders, func(c *contender) bool { return c.name == s.contender })
	return pick(s.ours(), "none", []string{"none", "5 3", "1.5 3"}[max(0, at)%3])
}

// scale draws the lines of the grid with their values, and returns where a value is.
func (p panel) scale(s *strings.Builder, t theme, all []series, bottom float64) func(float64) float64 {
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
		fmt.Fprintf(s, "<path d=\"M%d %.1fH%d\" stroke=\"%s\"/>\n", plotLeft, y(tick), plotRight, t.grid)
		text(s, plotLeft-6, y(tick)+4, thousands(tick), `text-anchor="end" font-size="11"`)
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

// A name stands right of a contender's last point.
type name struct {
	lines []string
	y     float64 // of the first line
	ours  bool
}

// write writes a name beside a point: right of it, or left where there is no room.
func (n *name) write(s *strings.Builder, t theme, x float64, left bool) {
	attributes := fmt.Sprintf(`text-anchor="%s" stroke="%s" stroke-width="3" paint-order="stroke"`, pick(left, "end", "start"), t.paper)
	if n.ours {
		attributes += fmt.Sprintf(` font-weight="700" fill="%s"`, t.ours)
	}
	for i, line := range n.lines {
		text(s, x+pick(left, -9.0, 9), n.y+float64(i*lineHeight)+4, line, attributes)
	}
}

func (n *name) height() float64 { return float64(len(n.lines)*lineHeight + 4) }

// apart moves names that cover each other, as little as it can, and keeps them between
// top and bottom.
func apart(names []*name, top, bottom float64) {
	for _, one := range names {
		one.y -= float64(len(one.lines)-1) * lineHeight / 2
	}
	slices.SortStableFunc(names, func(a, b *name) int { return cmp.Compare(a.y, b.y) })
	for range 100 { // each round moves what overlaps by half of it
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

// label is what a contender is called in pictures.
func label(contender string) []string {
	if c, err := findContender(contender); err == nil && c.label != "" {
		return strings.Split(c.label, "\n")
	}
	return wrap(contender, 20)
}

func text(s *strings.Builder, x, y float64, content, attributes string) {
	fmt.Fprintf(s, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, attributes, html.EscapeString(content))
}

// units keeps a number and its unit on one line.
var units = strings.NewReplacer(" B", "\u00a0B", " KiB", "\u00a0KiB")

// wrap breaks a text at spaces into lines of so many characters.
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
