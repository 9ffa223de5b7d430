package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A report collects the measured values, round by round.
type report struct {
	samples []sample
}

// A sample is one value of one round.
type sample struct {
	scenario, what, contender, metric string
	round                             int
	value                             float64
}

// A headline is the metric in which a scenario compares contenders with this project: higher or
// lower is better.
type headline struct {
	metric string
	lower  bool
	ours   string // the contender that represents this project; twoqueue if empty
}

func (h headline) name() string { return cmp.Or(h.ours, ledger.name) }

// against returns the contender of this project with which another is compared. Contenders on pgx
// are compared on pgx.
func (h headline) against(contender string) string {
	if base, native := strings.CutSuffix(contender, nativeSuffix); native && base != h.name() {
		return h.name() + nativeSuffix
	}
	return h.name()
}

// add records the values of one round, given as pairs of a metric's name and its value.
func (w *world) add(round int, scenario, what, contender string, values ...any) {
	var line strings.Builder
	for i := 0; i < len(values); i += 2 {
		metric, value := values[i].(string), values[i+1].(float64)
		w.report.samples = append(w.report.samples, sample{scenario, what, contender, metric, round, value})
		fmt.Fprintf(&line, "  %s %s", metric, number(value))
	}
	w.say("%-14s %-22s round %d:%s", contender, what, round+1, line.String())
}

// rounds returns a metric's values by round.
func (r *report) rounds(scenario, what, contender, metric string) map[int]float64 {
	values := make(map[int]float64)
	for _, s := range r.samples {
		if s.scenario == scenario && s.what == what && s.contender == contender && s.metric == metric {
			values[s.round] = s.value
		}
	}
	return values
}

// values returns a metric's values of all rounds, the lowest first.
func (r *report) values(scenario, what, contender, metric string) []float64 {
	return slices.Sorted(maps.Values(r.rounds(scenario, what, contender, metric)))
}

// write writes the results.
func (r *report) write(w *world, chosen []scenario) error {
	var text strings.Builder
	r.contenders(&text)
	for _, s := range chosen {
		fmt.Fprintf(&text, "## %s\n\n%s\n\n", s.name, s.what)
		r.table(&text, s)
	}
	head := fmt.Sprintf("# Benchmark\n\n%s\n\n", w.machine())
	measured, err := parseResults(head + text.String())
	if err == nil {
		var drawn bool
		if drawn, err = drawPicture(w.out, measured); drawn {
			head += pictureLine
		}
	}
	fmt.Print(head, text.String())
	return errors.Join(err, os.WriteFile(filepath.Join(w.out, "results.md"), []byte(head+text.String()), 0o644))
}

// contenders writes a description of each contender that took part.
func (r *report) contenders(text *strings.Builder) {
	for _, c := range contenders {
		if slices.ContainsFunc(r.samples, func(s sample) bool { return s.contender == c.name }) {
			fmt.Fprintf(text, "- **%s**: %s.\n", c.name, c.what)
		}
	}
	text.WriteString("\n")
}

// table writes a scenario as a Markdown table: medians, with the lowest and the highest round in
// brackets.
func (r *report) table(text *strings.Builder, s scenario) {
	type row struct{ what, contender string }
	var rows []row
	var metrics []string
	for _, one := range r.samples {
		if one.scenario != s.name {
			continue
		}
		if key := (row{one.what, one.contender}); !slices.Contains(rows, key) {
			rows = append(rows, key)
		}
		if !slices.Contains(metrics, one.metric) {
			metrics = append(metrics, one.metric)
		}
	}
	var cases []string
	for _, key := range rows {
		if !slices.Contains(cases, key.what) {
			cases = append(cases, key.what)
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Compare(slices.Index(cases, a.what), slices.Index(cases, b.what))
	})
	if len(rows) == 0 {
		text.WriteString("Nothing was measured.\n\n")
		return
	}
	fmt.Fprintf(text, "| | | %s |", strings.Join(metrics, " | "))
	if s.headline.metric != "" {
		fmt.Fprintf(text, " %s to it, %s (%s is better) |", s.headline.name(), s.headline.metric, pick(s.headline.lower, "lower", "higher"))
		metrics = append(metrics, "")
	}
	fmt.Fprintf(text, "\n|---|---|%s\n", strings.Repeat("---|", len(metrics)))
	for _, key := range rows {
		fmt.Fprintf(text, "| %s | %s |", key.what, key.contender)
		for _, metric := range metrics {
			if metric == "" {
				fmt.Fprintf(text, " %s |", r.ratio(s, key.what, key.contender))
				continue
			}
			fmt.Fprintf(text, " %s |", spread(r.values(s.name, key.what, key.contender, metric)))
		}
		text.WriteString("\n")
	}
	text.WriteString("\n")
}

// ratio returns the spread of the ratios of this project to a contender, over the rounds that have
// both.
func (r *report) ratio(s scenario, what, contender string) string {
	us := s.headline.against(contender)
	if contender == us {
		return ""
	}
	theirs := r.rounds(s.name, what, contender, s.headline.metric)
	var ratios []float64
	for round, ours := range r.rounds(s.name, what, us, s.headline.metric) {
		if their, ok := theirs[round]; ok {
			ratios = append(ratios, ours/their)
		}
	}
	if len(ratios) == 0 {
		return ""
	}
	return spread(ratios)
}

func spread(values []float64) string {
	switch len(values) {
	case 0:
		return ""
	case 1:
		return number(values[0])
	}
	low, middle, high := number(slices.Min(values)), number(median(values)), number(slices.Max(values))
	if low == high {
		return middle
	}
	return fmt.Sprintf("%s (%s–%s)", middle, low, high)
}

// machineEnd separates the description of the machine from the description of the figures.
const machineEnd = ". Medians of "

// machine describes the machine, the servers and the rounds.
func (w *world) machine() string {
	apart := ""
	if w.network > 0 {
		apart = fmt.Sprintf(", %s each way between servers and processes (a model of a network)", w.network)
	}
	databases := w.versions.postgres
	if w.versions.mariadb != "" {
		databases += "; " + w.versions.mariadb
	}
	return fmt.Sprintf("%s. %d cores, shared by all servers and processes%s; %s; %s; %s%s%d rounds, in brackets the lowest and the highest; one measurement takes %s. The machine's load average was %s before the run and %s at its end, this run's own load included.",
		time.Now().Format("2006-01-02"), runtime.NumCPU(), apart, w.versions.broker, databases, runtime.Version(), machineEnd, w.rounds, w.window, w.loaded, loadAverage())
}
